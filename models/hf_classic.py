"""Readers of families with LayerNorm and a plain feed-forward block: GPT-2 and its generation."""

from __future__ import annotations

from shardwright.models.hf_common import CLASSIC_BIASES, POSITIONS, Arguments, dropout, sizes, windows
from shardwright.models.hf_fields import WITHOUT_GATE, Fields

CLASSIC: Arguments = {"norm": "layernorm", **CLASSIC_BIASES}
MPT_ATTENTION = {"prefix_lm": False, "qk_ln": False, "attn_type": "multihead_attention", "alibi": True}


def gpt2(fields: Fields) -> Arguments:
    """GPT-2: learned positions, tied embeddings."""
    made = sizes(fields, tied=True)
    wide = fields.optional("ffn", "n_inner", "intermediate_size")
    fields.seen.add("n_ctx")
    return {
        **made,
        **CLASSIC,
        "max_positions": fields.required("max_positions", "n_positions", "max_position_embeddings"),
        "ffn": 4 * made["hidden"] if wide is None else wide,
        "activation": fields.activation("gelu_new", WITHOUT_GATE, "activation_function"),
        "positions": "learned",
        "dropout": dropout(fields, "resid_pdrop", "embd_pdrop"),
    }


def gpt_neox(fields: Fields) -> Arguments:
    """GPT-NeoX and Pythia: blocks beside each other, each with its norm."""
    made = sizes(fields)
    bias = fields.flag(True, "attention_bias")
    return {
        **made,
        "norm": "layernorm",
        "qkv_bias": bias,
        "out_bias": bias,
        "mlp_bias": True,
        "block": "parallel" if fields.flag(True, "use_parallel_residual") else "sequential",
        "ffn": fields.required("ffn", "intermediate_size"),
        "activation": fields.activation("gelu", WITHOUT_GATE, "hidden_act"),
        "dropout": dropout(fields, "hidden_dropout"),
    }


def bloom(fields: Fields) -> Arguments:
    """BLOOM: ALiBi, normalised embeddings, a block of four times the width."""
    made = sizes(fields, tied=True)
    fields.only("apply_residual_connection_post_layernorm", False)
    fields.seen.update(("offset_alibi", "bias_dropout_fusion", "skip_bias_add", "skip_bias_add_qkv"))
    fields.seen.update(("attention_softmax_in_fp32", "masked_softmax_fusion", "slow_but_exact"))
    return {
        **made,
        **CLASSIC,
        "positions": "alibi",
        "embedding_norm": True,
        "ffn": fields.optional("ffn", "n_inner") or 4 * made["hidden"],
        "activation": "gelu",
        "dropout": dropout(fields, "hidden_dropout"),
    }


def opt(fields: Fields) -> Arguments:
    """OPT: learned positions of which two are reserved. The variant with norms after the additions is refused."""
    made = sizes(fields, tied=True)
    fields.only("do_layer_norm_before", True)
    fields.only("_remove_final_layer_norm", False)
    fields.only("word_embed_proj_dim", made["hidden"])
    affine = fields.flag(True, "layer_norm_elementwise_affine")
    bias = fields.flag(True, "enable_bias")
    return {
        **made,
        "max_positions": fields.required("max_positions", *POSITIONS),
        "positions": "learned",
        "position_offset": 2,
        "norm": "layernorm" if affine else "layernorm-plain",
        **dict.fromkeys(CLASSIC_BIASES, bias),
        "ffn": fields.required("ffn", "ffn_dim"),
        "activation": fields.activation("relu", WITHOUT_GATE, "activation_function"),
        "dropout": dropout(fields, "dropout"),
    }


def mpt(fields: Fields) -> Arguments:
    """MPT: ALiBi, no biases."""
    made = sizes(fields, tied=True)
    attention = fields.inner("attn_config") if fields.given("attn_config") else Fields(data={})
    for key, allowed in MPT_ATTENTION.items():
        attention.only(key, allowed)
    fields.only("no_bias", True)
    fields.only("norm_type", "low_precision_layernorm")
    fields.seen.update(("embedding_fraction", "learned_pos_emb"))
    return {
        **made,
        "positions": "alibi",
        "norm": "layernorm-no-bias",
        "ffn": fields.count(4, 1, 64, "expansion_ratio") * made["hidden"],
        "activation": "gelu",
        "dropout": dropout(fields, "resid_pdrop", "emb_pdrop"),
    }


def falcon(fields: Fields) -> Arguments:
    """Falcon: one key head (7B), groups (40B, 180B), or one a head with ALiBi (RW)."""
    made = sizes(fields, tied=True)
    older_large = fields.word("", "model_type") == "RefinedWeb"  # the first files of 40B, before the switch had a name
    newer, single = fields.flag(older_large, "new_decoder_architecture"), fields.flag(True, "multi_query")
    groups = fields.optional("kv_heads", "num_kv_heads", "n_head_kv")
    bias = fields.flag(False, "bias")
    wide = fields.optional("ffn", "ffn_hidden_size")
    return {
        **made,
        "kv_heads": (groups or made["heads"]) if newer else 1 if single else made["heads"],
        "positions": "alibi" if fields.flag(False, "alibi") else "rope",
        "norm": "layernorm",
        "block": _falcon_block(fields, newer),
        **dict.fromkeys(CLASSIC_BIASES, bias),
        "ffn": 4 * made["hidden"] if wide is None else wide,
        "activation": fields.activation("gelu", WITHOUT_GATE, "activation"),
        "dropout": dropout(fields, "hidden_dropout"),
    }


def _falcon_block(fields: Fields, newer: bool) -> str:
    norms = fields.count(2 if newer else 1, 1, 2, "num_ln_in_parallel_attn")
    if not fields.flag(True, "parallel_attn"):
        return "sequential"
    return "parallel" if norms == 2 else "parallel-one-norm"


def phi(fields: Fields) -> Arguments:
    """Phi 1 and 2: biases everywhere, blocks beside each other behind one norm."""
    made = sizes(fields)
    fields.only("qk_layernorm", False)
    return {
        **made,
        **CLASSIC,
        "kv_heads": fields.optional("kv_heads", "num_key_value_heads"),
        "head_bias": True,
        "block": "parallel-one-norm",
        "ffn": fields.required("ffn", "intermediate_size"),
        "activation": fields.activation("gelu_new", WITHOUT_GATE, "hidden_act"),
        "dropout": dropout(fields, "resid_pdrop", "embd_pdrop"),
    }


def starcoder2(fields: Fields) -> Arguments:
    """StarCoder 2."""
    made = sizes(fields, tied=True)
    fields.only("mlp_type", "default")
    fields.only("norm_type", "layer_norm")
    fields.seen.update(("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32"))
    bias = fields.flag(True, "use_bias")
    return {
        **made,
        **dict.fromkeys(CLASSIC_BIASES, bias),
        "kv_heads": fields.optional("kv_heads", "num_key_value_heads"),
        "norm": "layernorm",
        "ffn": fields.required("ffn", "intermediate_size"),
        "activation": fields.activation("gelu_pytorch_tanh", WITHOUT_GATE, "hidden_act"),
        "windows": windows(fields, made["layers"], everywhere=True),
        "dropout": dropout(fields, "residual_dropout", "embedding_dropout"),
    }
