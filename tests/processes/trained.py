"""Trainings with code that no one here wrote: transformers' Trainer, and peft's LoRA within it.

    python -m torch.distributed.run --nproc_per_node 2 trained.py MODEL FOLDER    real Accelerate
    python trained.py MODEL FOLDER --ours                                         ours, launched

The main process writes FOLDER/told.json: what Trainer logged, and a sum over the weights.
"""

from __future__ import annotations

import inspect
import json
import sys
import textwrap
from pathlib import Path


def blocks(length: int = 32, number: int = 90) -> list[dict[str, list[int]]]:
    """The bytes of a module of the standard library, as a language model's samples."""
    text = inspect.getsource(textwrap).encode()
    cut = [list(text[i : i + length]) for i in range(0, length * number, length)]
    return [{"input_ids": block, "labels": block} for block in cut]


def tiny_gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(vocab_size=256, n_positions=32, n_embd=32, n_layer=2, n_head=2)
    )


def with_lora(model):
    from peft import LoraConfig, get_peft_model

    return get_peft_model(
        model,
        LoraConfig(
            r=8, lora_alpha=32, target_modules=["c_attn", "c_fc", "c_proj"], fan_in_fan_out=True
        ),
    )


def train(kind: str, folder: str) -> None:
    from transformers import Trainer, TrainingArguments, set_seed

    set_seed(1)
    samples = blocks()
    trainer = Trainer(
        with_lora(tiny_gpt2()) if kind == "lora" else tiny_gpt2(),
        TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            max_steps=12,  # more than one epoch
            per_device_train_batch_size=4,
            per_device_eval_batch_size=4,
            gradient_accumulation_steps=2,
            learning_rate=3e-2 if kind == "lora" else 3e-3,
            lr_scheduler_type="cosine",
            warmup_steps=2,
            max_grad_norm=0.5,
            logging_steps=1,
            eval_strategy="steps",
            eval_steps=6,
            save_steps=6,
            report_to=[],
            disable_tqdm=True,
            seed=1,
        ),
        train_dataset=samples[:75],  # whose last batches are short
        eval_dataset=samples[75:],
    )
    trainer.train()
    uninterrupted = trainer.state.log_history
    trainer.train(resume_from_checkpoint=f"{folder}/checkpoint-6")
    tell(trainer, Path(folder), [*uninterrupted, *trainer.state.log_history])


def tell(trainer, folder: Path, log: list[dict[str, float]]) -> None:
    accelerator = trainer.accelerator
    state = trainer.accelerator.get_state_dict(trainer.model)
    if not accelerator.is_main_process:
        return
    keys = ("loss", "grad_norm", "learning_rate", "eval_loss", "epoch")
    told = {
        "module": type(accelerator).__module__,
        "world_size": accelerator.num_processes,
        "log": [[e.get(key) for key in keys] for e in log],
        "weights": {name: tensor.double().norm().item() for name, tensor in state.items()},
        "files": sorted(p.name for p in (folder / "checkpoint-12").iterdir()),
    }
    (folder / "told.json").write_text(json.dumps(told))


def main(kind: str, folder: str, *ours: str) -> None:
    if not ours:
        train(kind, folder)
        return
    import nb_accelerate.compat
    from nb_accelerate import notebook_launcher

    nb_accelerate.compat.install()
    notebook_launcher(train, (kind, folder), num_processes=2, hardware="cpu")


if __name__ == "__main__":
    main(*sys.argv[1:])
