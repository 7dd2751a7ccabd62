"""Shrinks configurations of transformers, and guesses inputs for a model's `forward` from the names of its parameters."""

import inspect

import torch

# Values for integer attributes of configurations.
SMALL = {
    "vocab_size": 128, "hidden_size": 32, "d_model": 32, "n_embd": 32, "dim": 32, "embed_dim": 32, "embedding_size": 32,
    "hidden_dim": 32, "width": 32, "projection_dim": 16, "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2,
    "encoder_layers": 2, "decoder_layers": 2, "num_encoder_layers": 2, "num_decoder_layers": 2, "num_attention_heads": 4,
    "num_heads": 4, "n_head": 4, "n_heads": 4, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "intermediate_size": 64, "ffn_dim": 64, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "d_ff": 64, "d_kv": 8, "n_inner": 64,
    "head_dim": 8, "num_key_value_heads": 2, "num_kv_heads": 2, "max_position_embeddings": 64, "n_positions": 64,
    "max_source_positions": 50, "max_target_positions": 64, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4,
    "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "n_group": 1, "topk_group": 1,
    "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "state_size": 8,
    "ssm_state_size": 8, "mamba_d_state": 8, "mamba_d_head": 8, "mamba_n_heads": 8, "mamba_num_heads": 8, "mamba_head_dim": 8,
    "image_size": 32, "patch_size": 8, "num_mel_bins": 16, "num_queries": 8, "sliding_window": 8, "chunk_size": 8,
    "attention_chunk_size": 8, "num_frames": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8, "vocab_size_per_layer_input": 128, "hidden_size_per_layer_input": 8, "expert_intermediate_size": 32,
    "depth": 2, "first_k_dense_replace": 1, "codebook_size": 32, "d_inner": 64, "feature_size": 16,
    "word_embed_proj_dim": 32, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "decoder_start_token_id": 1,
    "prediction_length": 4, "context_length": 16, "num_time_features": 2,
    "mlp_dim": 64, "mlp_hidden_size": 64, "shared_intermediate_size": 64, "lru_width": 32, "index_head_dim": 16, "index_n_heads": 2,
    "index_topk": 8, "compressor_rank": 16,
}


# The subset used if the widths above are inconsistent for a model: only the numbers of layers and experts and vocabulary sizes.
FEWER = {name: n for name, n in SMALL.items() if "layers" in name or name.endswith("vocab_size") or name == "n_layer"
         or name in ("num_experts", "num_local_experts", "n_routed_experts", "depth")}


# The maximum number of parameters of a model.
MAX_PARAMETERS = 50_000_000


def shrunk(cls, small=SMALL):
    """A configuration of a class with its known attributes shrunk, recursively in its sub-configurations."""
    whole = cls()
    values = {}
    for name, value in whole.to_dict().items():
        own = getattr(whole, name, value)
        if isinstance(own, bool):
            continue
        if isinstance(own, int) and name in small and own > 2:
            values[name] = small[name]
        elif isinstance(own, int) and name.endswith("token_id") and own > 100:
            values[name] = 100
        elif isinstance(own, int) and name.endswith(("_vocab_size", "_size")) and name not in SMALL and own > 1000:
            values[name] = 128
    parts = {name: shrunk(type(getattr(whole, name)), small).to_dict() for name in getattr(cls, "sub_configs", {})
             if getattr(whole, name, None) is not None and hasattr(getattr(whole, name), "to_dict")}
    try:
        return cls(**values, **parts)
    except Exception:
        pass
    # The values are inconsistent: apply them one at a time, and skip those that are rejected.
    kept = dict(parts)
    for name, value in values.items():
        try:
            cls(**kept, **{name: value})
            kept[name] = value
        except Exception:
            continue
    return cls(**kept)


def any_of(config, *names, default):
    for part in [config, *(getattr(config, n, None) for n in getattr(type(config), "sub_configs", {}))]:
        for name in names:
            value = getattr(part, name, None)
            if isinstance(value, (list, tuple)) and value:
                value = value[0]
            if isinstance(value, int):
                return value
    return default


def candidates(config, parameters):
    """Candidate inputs by name, most likely first."""
    side = any_of(config, "image_size", default=32)
    length = any_of(config, "context_length", default=64)
    channels = any_of(config, "num_channels", "in_channels", "in_chans", default=3)
    mels = any_of(config, "num_mel_bins", "feature_size", "n_mels", "input_dim", "input_feat_per_channel", default=16)
    hidden = any_of(config, "hidden_size", "d_model", default=32)
    tokens = lambda n=16: torch.randint(3, 90, (1, n))
    options = {
        "input_ids": [tokens()], "decoder_input_ids": [tokens(8)], "bbox": [torch.randint(0, 30, (1, 16, 4)).sort(-1)[0]],
        "pixel_values": [torch.randn(1, channels, side, side), torch.randn(1, channels, 64, 64),
                         torch.randn(1, any_of(config, "num_frames", default=4), channels, side, side),
                         torch.randn(1, channels, 224, 224)],
        "pixel_values_videos": [torch.randn(1, 4, channels, side, side)],
        "input_values": [torch.randn(1, 1600), torch.randn(1, 1, 1600), torch.randn(1, 1024, 128)],
        "input_features": [torch.randn(1, mels, 100), torch.randn(1, 100, mels), torch.randn(1, 80, 100),
                           torch.randn(1, 100, 80)],
        "spectrogram": [torch.randn(1, 40, mels)], "past_values": [torch.randn(1, length, any_of(
            config, "num_input_channels", default=1)), torch.randn(1, 23)],
        "inputs_embeds": [torch.randn(1, 16, hidden)], "hidden_states": [torch.randn(1, 16, hidden)],
        "inputs": [tokens(), torch.randn(1, 16, hidden)],
    }
    required = [n for n, p in parameters.items() if p.default is inspect.Parameter.empty and p.kind == p.POSITIONAL_OR_KEYWORD]
    mains = [n for n in ("input_ids", "pixel_values", "input_values", "input_features", "pixel_values_videos", "past_values",
                         "inputs", "spectrogram", "hidden_states", "inputs_embeds") if n in parameters]
    if {"input_ids", "pixel_values"} <= set(parameters):
        yield from ({"input_ids": tokens(), "pixel_values": p} for p in options["pixel_values"])
    for main in mains:
        for x in options[main]:
            given = {main: x}
            if "decoder_input_ids" in parameters:
                yield given | {"decoder_input_ids": options["decoder_input_ids"][0]}
            extra = {n: options[n][0] for n in (*required, "bbox") if n in options and n in parameters and n != main}
            yield given | extra


def networks():
    from transformers import AutoModel, AutoModelForCausalLM, CONFIG_MAPPING
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
    # Import before forking, so that child processes need not import these modules each.
    from transformers import modeling_utils, pipelines  # noqa: F401
    for name in CONFIG_MAPPING_NAMES:
        yield name, lambda name=name: model(CONFIG_MAPPING[name], AutoModelForCausalLM, AutoModel)


def model(cls, *heads):
    """A model of a shrunk configuration, and inputs that it runs on."""
    try:
        return model_of(shrunk(cls), heads)
    except Exception:
        return model_of(shrunk(cls, FEWER), heads)


def model_of(config, heads):
    from catalogue import Flat
    config.use_cache = False
    why = None
    # For encoder-decoders, try the model without a head first: a causal language model of the configuration has only the decoder.
    for head in reversed(heads) if getattr(config, "is_encoder_decoder", False) else heads:
        try:
            net = head.from_config(config).eval()
        except Exception as e:
            why = why or e
            continue
        if sum(p.numel() for p in net.parameters()) > MAX_PARAMETERS:
            raise RuntimeError("too large: its widths have other names")
        widen(net)
        parameters = inspect.signature(net.forward).parameters
        for inputs in candidates(config, parameters):
            whole = Flat(net, list(inputs))
            try:
                with torch.no_grad():
                    if whole(*inputs.values()):
                        return whole, tuple(inputs.values())
            except Exception as e:
                why = e
    raise RuntimeError(f"it does not run: {type(why).__name__}: {why}")


def widen(net):
    """Re-initializes weights with a larger deviation: with the default one, outputs hardly depend on the input, which would hide
    errors."""
    for p in net.parameters():
        if p.dim() > 1 and p.is_floating_point():
            torch.nn.init.normal_(p, std=0.1)
