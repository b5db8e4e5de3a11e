"""Which names upstream's modules offer, and in which room of ours each one is.

A line that begins at the margin is a module of upstream's; the lines below it are rooms of ours
with the names that they give to it. `*` is all that the room offers.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["MODULES", "TOP", "Table", "absent_names", "rooms"]

Table = dict[str, dict[str, str]]
"""Module, as "utils.memory" → name → the room that has it, as "training.memory"."""

_TOP = """
    Accelerator PartialState ParallelismConfig notebook_launcher debug_launcher skip_first_batches
    find_executable_batch_size synchronize_rng_states prepare_pippy init_empty_weights
    init_on_device cpu_offload cpu_offload_with_hook disk_offload dispatch_model
    load_checkpoint_and_dispatch load_checkpoint_in_model infer_auto_device_map is_rich_available
    DistributedType DataLoaderConfiguration AutocastKwargs DDPCommunicationHookType
    DeepSpeedPlugin DistributedDataParallelKwargs FullyShardedDataParallelPlugin GradScalerKwargs
    InitProcessGroupKwargs ProfileKwargs
"""

_HERE = """
accelerator
    training.accelerator: Accelerator
checkpointing
    training.checkpoint.by_hand: load_accelerator_state load_custom_state save_accelerator_state
        save_custom_state
commands
commands.config
    compat.configs: write_basic_config
commands.config.config_args
    compat.configs: cache_dir default_config_file default_json_config_file
        default_yaml_config_file hf_cache_home
commands.config.default
    compat.configs: write_basic_config
data_loader
    training.samplers: BatchSamplerShard SeedableRandomSampler SkipBatchSampler
    training.streams: IterableDatasetShard
    training.loaders: DataLoaderStateMixin
    training.data_loaders: DataLoaderDispatcher DataLoaderShard SkipDataLoader get_sampler
        prepare_data_loader skip_first_batches
launchers
    notebook: debug_launcher notebook_launcher
local_sgd
    training.local_sgd: LocalSGD
logging
    training.logs: MultiProcessAdapter get_logger
memory_utils
optimizer
    training.optimizer: AcceleratedOptimizer
scheduler
    training.scheduler: AcceleratedScheduler
state
    training.gradient_state: GradientState
    training.states: AcceleratorState PartialState is_initialized
tracking
    training.trackers: AimTracker ClearMLTracker CometMLTracker DVCLiveTracker GeneralTracker
        LOGGER_TYPE_TO_CLASS MLflowTracker SwanLabTracker TensorBoardTracker TrackioTracker
        WandBTracker filter_trackers get_available_trackers on_main_process register_tracker_class
utils
    compat.configs: write_basic_config
utils.constants
    compat.constants: *
    training.checkpoint.names: MODEL_NAME OPTIMIZER_NAME RNG_STATE_NAME SAFE_MODEL_NAME
        SAFE_WEIGHTS_INDEX_NAME SAFE_WEIGHTS_NAME SAFE_WEIGHTS_PATTERN_NAME SAMPLER_NAME
        SCALER_NAME SCHEDULER_NAME WEIGHTS_INDEX_NAME WEIGHTS_NAME WEIGHTS_PATTERN_NAME
utils.dataclasses
    compat.enums: *
    training.checkpoint.project: ProjectConfiguration
    training.communication: DDPCommunicationHookType DistributedDataParallelKwargs
    training.compiling: DynamoBackend TorchDynamoPlugin
    training.engine: DistributedType
    training.loaders: DataLoaderConfiguration
    training.plugins: AutocastKwargs GradScalerKwargs GradientAccumulationPlugin
        InitProcessGroupKwargs KwargsHandler
    training.profiling: ProfileKwargs
    training.structures: TensorInformation
    training.trackers: LoggerType
utils.environment
    compat.environment: *
    compat.devices: *
utils.imports
    compat.probes: *
utils.megatron_lm
utils.memory
    training.memory: clear_device_cache find_executable_batch_size release_memory
        should_reduce_batch_size
utils.modeling
    compat.checkpoints: load_checkpoint_in_model load_state_dict
    training.checkpoint.names: WEIGHTS_INDEX_NAME
    compat.modules: compute_module_sizes convert_file_size_to_int dtype_byte_size
        find_tied_parameters has_offloaded_params id_tensor_storage is_peft_model
        named_module_tensors
utils.operations
    training.operations: CannotPadNestedTensorWarning DistributedOperationException broadcast
        broadcast_object_list copy_tensor_to_devices gather gather_object pad_across_processes
        reduce
    training.structures: ConvertOutputsToFp32 concatenate convert_outputs_to_fp32 convert_to_fp32
        find_batch_size find_device get_data_structure get_shape honor_type
        ignorant_find_batch_size initialize_tensors is_namedtuple is_tensor_information
        is_torch_tensor listify pad_input_tensors recursively_apply send_to_device slice_tensors
utils.other
    compat.other: check_os_kernel clean_state_dict_for_safetensors convert_bytes
        extract_model_from_parallel get_free_port get_pretty_name is_port_in_use merge_dicts
        recursive_getattr save wait_for_everyone
    compat.modules: get_model_tp_size get_module_children_bottom_up has_compiled_regions
        is_compiled_module model_has_dtensor
    training.checkpoint.reading: load
    training.regions: compile_regions has_repeated_blocks is_repeated_blocks
utils.random
    training.seeding: set_seed synchronize_rng_state synchronize_rng_states
utils.rich
utils.tqdm
    training.bars: tqdm
utils.versions
    compat.versions: *
"""

_ABSENT = """
big_modeling: attach_layerwise_casting_hooks cpu_offload cpu_offload_with_hook disk_offload
    dispatch_model init_empty_weights init_on_device load_checkpoint_and_dispatch
commands.accelerate_cli: main
commands.config: get_config_parser main
commands.config.cluster: get_cluster_input
commands.config.config: config_command config_command_parser get_user_input main
commands.config.config_args: BaseConfig ClusterConfig SageMakerConfig load_config_from_file
commands.config.config_utils: SubcommandHelpFormatter
commands.config.default: default_command_parser default_config_command
commands.config.sagemaker: get_sagemaker_input
commands.config.update: update_command_parser update_config update_config_command
commands.env: env_command env_command_parser main
commands.estimate: add_timm_hub_prefix check_has_model create_ascii_table create_empty_model
    estimate_command estimate_command_parser estimate_training_usage gather_data main
    verify_on_hub
commands.launch: CustomHelpFormatter clean_option deepspeed_launcher launch_command
    launch_command_parser main multi_gpu_launcher options_to_group sagemaker_launcher
    simple_launcher tpu_launcher tpu_pod_launcher
commands.merge: main merge_command merge_command_parser
commands.test: main test_command test_command_parser
commands.to_fsdp2: ConversionStatus
    convert_config_to_fsdp2 load_config to_fsdp2_command to_fsdp2_command_parser
commands.tpu: main tpu_command_launcher tpu_command_parser
commands.utils: CustomArgumentGroup CustomArgumentParser
data_loader: DataLoaderAdapter MpDeviceLoaderWrapper
hooks: AlignDevicesHook CpuOffload LayerwiseCastingHook ModelHook SequentialHook
    UserCpuOffloadHook add_hook_to_module attach_align_device_hook
    attach_align_device_hook_on_blocks attach_execution_device_hook remove_hook_from_module
    remove_hook_from_submodules
inference: build_pipeline find_pippy_batch_size generate_device_map pippy_forward prepare_pippy
launchers: test_launch
optimizer: move_to_device patch_optimizer_step
parallelism_config: ParallelismConfig
state: SharedDict ThreadLocalSharedDict do_nothing
utils.ao: convert_model_to_fp8_ao filter_first_and_last_linear_layers filter_linear_layers
    find_first_last_linear_layers has_ao_layers
utils.bnb: get_keys_to_not_convert get_parameter_device get_quantized_model_device_map
    has_4bit_bnb_layers load_and_quantize_model quantize_and_offload_8bit replace_with_bnb_layers
utils.dataclasses: AORecipeKwargs AmaxComputeAlgorithm Backend BnbQuantizationConfig
    DeepSpeedPlugin DeepSpeedSequenceParallelConfig FP8Format FP8RecipeKwargs
    FullyShardedDataParallelPlugin MSAMPRecipeKwargs MegatronLMPlugin OptLevel ProfilerActivity
    TERecipeKwargs TorchContextParallelConfig TorchTensorParallelConfig TorchTensorParallelPlugin
    add_model_config_to_megatron_parser get_module_class_from_name parse_bert_config
    parse_glm4_moe_config parse_gpt2_config parse_llama_config parse_t5_config
utils.deepspeed: DeepSpeedEngineWrapper DeepSpeedOptimizerWrapper DeepSpeedSchedulerWrapper
    DummyOptim DummyScheduler HfDeepSpeedConfig get_active_deepspeed_plugin
    map_pytorch_optim_to_deepspeed
utils.fsdp_utils: disable_fsdp_ram_efficient_loading enable_fsdp_ram_efficient_loading
    ensure_weights_retied fsdp2_apply_ac fsdp2_canonicalize_names fsdp2_load_full_state_dict
    fsdp2_prepare_auto_wrap_policy fsdp2_prepare_model fsdp2_switch_optimizer_parameters
    get_fsdp2_grad_scaler get_parameters_from_modules load_fsdp_model load_fsdp_optimizer
    merge_fsdp_weights save_fsdp_model save_fsdp_optimizer
utils.imports: deepspeed_required
utils.launch: PrepareForLaunch _filter_args env_var_path_add prepare_deepspeed_cmd_env
    prepare_extend_env_parallelism_config prepare_multi_gpu_env prepare_sagemager_args_inputs
    prepare_simple_launcher_cmd_env prepare_tpu setup_fp8_env
utils.megatron_lm: AbstractTrainStep BertTrainStep GPTTrainStep MegatronEngine
    MegatronLMDummyDataLoader MegatronLMDummyScheduler MegatronLMOptimizerWrapper
    MegatronLMSchedulerWrapper T5TrainStep avg_losses_across_data_parallel_group finish_mpu_init
    gather_across_data_parallel_groups initialize model_provider_func
    prepare_model_optimizer_scheduler prepare_optimizer prepare_scheduler
utils.modeling: align_module_device calculate_maximum_sizes check_device_map check_device_same
    check_tied_parameters_in_config check_tied_parameters_on_same_device clean_device_map
    compute_module_total_buffer_size fallback_allocate get_balanced_memory get_grad_scaler
    get_max_layer_size get_max_memory get_mixed_precision_context_manager get_module_leaves
    get_module_size_with_ties get_non_persistent_buffers get_state_dict_from_offload
    get_state_dict_offloaded_model infer_auto_device_map
    load_offloaded_weights retie_parameters set_module_tensor_to_device
utils.offload: OffloadedWeightsLoader PrefixedDataset extract_submodules_state_dict
    load_offloaded_weight offload_state_dict offload_weight save_offload_index
utils.operations: GatheredParameters chained_operation gather_tensor_shape is_torch_xpu_tensor
    verify_operation
utils.other: compile_regions_deepspeed compile_regions_fsdp2
utils.torch_xla: install_xla
utils.transformer_engine: apply_fp8_autowrap contextual_fp8_autocast convert_model
    has_transformer_engine_layers
"""


@cache
def rooms() -> Table:
    """Every module with its names and their rooms; `*` stands for all of a room's."""
    table: Table = {module: {} for module in MODULES}
    for module, room, names in _stanzas():
        table[module] |= dict.fromkeys(names, room) if names != ["*"] else {f"*{room}": room}
    return table


@cache
def absent_names() -> dict[str, frozenset[str]]:
    """Module → the names of upstream's that this version has only as something that refuses."""
    return {
        module: frozenset(names.split())
        for module, _, names in (line.partition(": ") for line in _unfolded(_ABSENT))
    }


def _stanzas() -> Iterator[tuple[str, str, list[str]]]:
    module = ""
    for line in _unfolded(_HERE, indent=8):
        if not line.startswith(" "):
            module = line
            continue
        room, _, names = line.strip().partition(": ")
        yield module, room, names.split()


def _unfolded(text: str, indent: int = 4) -> list[str]:
    """Its lines, each joined with those below that are indented as its continuation."""
    return text.strip().replace("\n" + " " * indent, " ").splitlines()


def _modules() -> frozenset[str]:
    here = {line for line in _unfolded(_HERE, indent=8) if not line.startswith(" ")}
    found = here | {line.partition(": ")[0] for line in _unfolded(_ABSENT)}
    return frozenset(found)


TOP = frozenset(_TOP.split())
"""What upstream's package itself offers, gathered from its modules."""

MODULES = _modules()
"""Every module that upstream has below its package, by its path there."""
