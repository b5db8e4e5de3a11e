"""Keeping: what a replica writes to disk, and how training goes on from it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import checkpoint
from .models import unwrap_model
from .together import Together

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from torch import nn
    from torch.utils.hooks import RemovableHandle

    from .binding import Binding
    from .checkpoint import ProjectConfiguration
    from .checkpoint.files import Stateful
    from .checkpoint.keepsakes import LoadHook, SaveHook
    from .checkpoint.model_files import Target
    from .nested import Anything

__all__ = ["Keeping"]


class Keeping(Together):
    """Checkpoints of a replica."""

    @property
    def _here(self) -> Binding:
        raise NotImplementedError

    # ------------------------------------------------------------ where
    @property
    def project_configuration(self) -> ProjectConfiguration:
        """Where checkpoints and logs are kept, and how checkpoints are named."""
        return self._here.settings.project

    @property
    def project_dir(self) -> str | os.PathLike[str] | None:
        """The folder of the project."""
        return self.project_configuration.project_dir

    @property
    def logging_dir(self) -> str | os.PathLike[str] | None:
        """Where trackers that write files do so."""
        return self.project_configuration.logging_dir

    @property
    def save_iteration(self) -> int:
        """The number of the next automatically named checkpoint, unless there are higher ones."""
        return self.project_configuration.iteration

    @property
    def should_save_model(self) -> bool:
        """Whether this is the process of its host that writes models."""
        return self.is_local_main_process

    # ------------------------------------------------------------ a training
    def save_state(
        self,
        output_dir: str | os.PathLike[str] | None = None,
        safe_serialization: bool = True,  # noqa: FBT001, FBT002  # upstream's order
        **save_model_func_kwargs: Anything,  # noqa: ARG002  # for engines that write models
    ) -> Path:
        """Write all that training needs to go on from here. Every rank must call it.

        The files are Accelerate's; it can load the folder. Until it is complete it is written out
        of sight, so that whatever happens, what was saved before can be loaded. An old checkpoint
        of that name is replaced, other files in the folder are kept.

        Args:
            output_dir: the folder; with automatic naming it is not used.
            safe_serialization: write models as safetensors, else with torch.save.
            save_model_func_kwargs: not used: no engine here writes models itself.

        Returns:
            The folder.

        Raises:
            SpecError: no folder; or the automatically named one has come to be in the meantime.
            CheckpointError: another rank could not write its part.
        """
        return checkpoint.save_state(self._here, output_dir, safe=safe_serialization)

    def load_state(
        self,
        input_dir: str | os.PathLike[str] | None = None,
        load_kwargs: Mapping[str, Any] | None = None,
        **load_model_func_kwargs: Anything,
    ) -> None:
        """Go on from a checkpoint of this package or of Accelerate. Every rank must call it.

        Prepare and register the same as when it was saved, in the same order. When it was saved
        within a loop over a prepared loader, the next loop over that loader gives exactly the
        batches that were left, and the ones after it are whole. `skip_first_batches(loader, n)`
        takes the place of that, it does not add to it: it skips n batches from the beginning of the
        epoch. A folder that Accelerate has written does not tell where its loaders were.

        Training goes on bit for bit as if it had not been left, with one exception: where a dataset
        itself draws random numbers for its samples, these are others than they would have been, and
        without loader workers so is what the process draws after them.

        With another number of ranks than it was saved by, the samples that are left are shared out
        anew, and ranks that it has no random states for keep their own.

        Args:
            input_dir: the folder; None is the newest complete one of automatic naming.
            load_kwargs: for torch.load. Files that hold objects of classes are refused, whose
                loading could run any code; {"weights_only": False} allows them.
            load_model_func_kwargs: for the models' load_state_dict, such as strict=False; and
                map_location, "cpu" or "on_device": where files are read to.

        Raises:
            SpecError: there is no such folder.
            CheckpointError: it does not hold what was prepared and registered.
            UnsafeCheckpoint: it could run code.
        """
        checkpoint.load_state(self._here, input_dir, load_kwargs, load_model_func_kwargs)

    def register_for_checkpointing(self, *objects: Stateful) -> None:
        """Save and load the states of these, too: rank 0's states are every rank's.

        Raises:
            SpecError: some have no state_dict or load_state_dict.
        """
        self._here.keepsakes.register(*objects)

    def register_save_state_pre_hook(self, hook: SaveHook) -> RemovableHandle:
        """Have `hook(models, weights, output_dir)` called when `save_state` begins.

        What it writes to `output_dir` belongs to the checkpoint. That is not the final place yet,
        but its last part is the final one's. Weights that it removes from the list are not written.

        Returns:
            A handle; `handle.remove()` takes the hook back.
        """
        return self._here.keepsakes.before_saving(hook)

    def register_load_state_pre_hook(self, hook: LoadHook) -> RemovableHandle:
        """Have `hook(models, input_dir)` called when `load_state` begins.

        Models that it removes from the list are not loaded.

        Returns:
            A handle; `handle.remove()` takes the hook back.
        """
        return self._here.keepsakes.before_loading(hook)

    # ------------------------------------------------------------ a model, an object
    def save(
        self,
        obj: Anything,
        f: Target,
        safe_serialization: bool = False,  # noqa: FBT001, FBT002  # upstream's order
    ) -> None:
        """Write an object on the main process (of each host with `save_on_each_node`).

        A file of that name is there whole or not at all.
        """
        if self._writes:
            checkpoint.write_object(obj, f, safe=safe_serialization)

    def save_model(
        self,
        model: nn.Module,
        save_directory: str | os.PathLike[str],
        max_shard_size: int | str = "10GB",
        safe_serialization: bool = True,  # noqa: FBT001, FBT002  # upstream's order
    ) -> None:
        """Write a model alone, on the main process, in files as Hugging Face's libraries have them.

        Args:
            model: prepared or not.
            save_directory: made when it is missing. Shards of an earlier call are removed.
            max_shard_size: of one file: bytes, or "5GB".
            safe_serialization: as safetensors, else with torch.save.

        Raises:
            SpecError: the folder is a file.
            CheckpointError: the model's weights have no values, on the meta device.
        """
        if self._writes:
            checkpoint.save_model_files(
                unwrap_model(model), Path(save_directory), max_shard_size, safe=safe_serialization
            )

    def get_state_dict(
        self,
        model: nn.Module,
        unwrap: bool = True,  # noqa: FBT001, FBT002  # upstream's order
    ) -> dict[str, Any]:
        """The model's weights by name; with `unwrap` by the names that its user gave them."""
        return (unwrap_model(model) if unwrap else model).state_dict()

    @property
    def _writes(self) -> bool:
        each = self.project_configuration.save_on_each_node
        return checkpoint.writes(self._replica, on_each_node=each)

    @property
    def _custom_objects(self) -> list[Stateful]:
        return self._here.keepsakes.objects
