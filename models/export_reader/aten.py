"""ATen operators in the vocabulary of `records.OPERATIONS`.

`converted` gives the word, the tensors in the word's order and its attributes for one call; the tables say which word each
operator has and what autograd keeps for it (derivatives.yaml of PyTorch): operands of products, the input of gelu, the output
of relu, a mask of dropout. Both levels of IR are read: as exported (`aten.linear`, `aten.conv2d`) and decomposed
(`aten.addmm`, `aten.convolution`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Arguments = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One operator call in the common vocabulary; `inputs` are names of tensors, missing ones left out."""

    op: str
    inputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)


_POINTWISE = {
    "none": """add sub rsub neg to _to_copy type_as detach sign floor ceil round trunc eq ne lt le gt ge logical_and logical_or
        logical_not logical_xor bitwise_and bitwise_or bitwise_not bitwise_xor isnan isinf isfinite fill zero and or xor
        alias_copy lift_fresh_copy view_copy remainder floor_divide bernoulli positive""",
    "inputs": """mul div pow gelu silu abs cos sin tan atan acos asin log log1p log2 log10 leaky_relu elu hardswish mish
    softplus
        clamp clamp_min clamp_max maximum minimum fmod lerp addcmul addcdiv prelu log_sigmoid erf where celu selu hardsigmoid
        softsign square true_divide threshold softshrink hardshrink xlogy cosh sinh atan2 frac copysign special_erf
        binary_cross_entropy_with_logits mse_loss l1_loss smooth_l1_loss huber_loss kl_div binary_cross_entropy
        soft_margin_loss hinge_embedding_loss margin_ranking_loss cosine_embedding_loss""",
    "output": "relu sigmoid tanh exp sqrt rsqrt reciprocal hardtanh relu6 expm1 exp2 logit",
    "mask": "dropout native_dropout feature_dropout alpha_dropout masked_fill dropout2d",
}
_LOSSES = """mse_loss l1_loss smooth_l1_loss huber_loss kl_div binary_cross_entropy binary_cross_entropy_with_logits
soft_margin_loss
    hinge_embedding_loss margin_ranking_loss cosine_embedding_loss"""
_COPIES = "contiguous clone copy roll flip flipud fliplr"
_CONSTANT = """arange full ones zeros empty eye scalar_tensor rand randn linspace new_zeros new_ones new_full new_empty
tril_indices
    triu_indices empty_permuted hann_window randint randperm zeros_like ones_like full_like empty_like rand_like randn_like"""
_RESHAPES = """view reshape flatten unflatten squeeze unsqueeze _unsafe_view view_as reshape_as _reshape_alias alias
    lift_fresh squeeze_copy atleast_1d atleast_2d"""
_WINDOWS = """cumsum cumprod sort topk pad constant_pad_nd reflection_pad1d reflection_pad2d replication_pad1d
replication_pad2d tril
    triu glu scatter scatter_add index_put slice_scatter select_scatter masked_scatter logcumsumexp cummax repeat_interleave
    repeat tile im2col unfold fold col2im one_hot diagonal index_add pixel_shuffle pixel_unshuffle grid_sampler
    grid_sampler_2d
    affine_grid_generator channel_shuffle diff isin unique_consecutive bincount"""
_POOLS = """max_pool1d max_pool2d max_pool3d max_pool2d_with_indices max_pool3d_with_indices avg_pool1d avg_pool2d avg_pool3d
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d
    adaptive_max_pool1d lp_pool2d"""
_RESIZES = """upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_bilinear2d upsample_bicubic2d
upsample_trilinear3d
    upsample_linear1d _upsample_nearest_exact2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa"""
_REDUCTIONS = {
    "none": "sum mean any all argmax argmin nansum count_nonzero numel",
    "inputs": "var std norm linalg_vector_norm prod logsumexp var_mean std_mean cosine_similarity pairwise_distance cdist",
    "index": "max min amax amin median",
}
_CONVS = "conv1d conv2d conv3d convolution conv_transpose1d conv_transpose2d conv_transpose3d _convolution"


def converted(name: str, given: Arguments, ranks: Mapping[str, int]) -> Call | None:
    """The call of an ATen operator in the common vocabulary, None for one without a rule.

    Args:
        name: without namespace, overload and the underscore of in-place forms.
        given: its arguments by name: names of tensors, lists of such, numbers.
        ranks: number of dims of each tensor.
    """
    rule = _RULES.get(name)
    return None if rule is None else rule(given, ranks)


def _tensors(given: Arguments, *names: str) -> tuple[str, ...]:
    """Names of the tensors among some arguments (all, in order, where none is named)."""
    values = [given.get(name) for name in names] if names else list(given.values())
    flat = [item for value in values for item in (value if isinstance(value, (list, tuple)) else [value])]
    return tuple(item.name for item in flat if isinstance(item, TensorName))


@dataclass(frozen=True, slots=True)
class TensorName:
    """The name of a tensor among arguments, told from other texts."""

    name: str


def _plain(op: str, **attributes: Any) -> Callable[[Arguments, Mapping[str, int]], Call]:
    return lambda given, ranks: Call(op=op, inputs=_tensors(given), attributes=attributes)


def _first(op: str, **attributes: Any) -> Callable[[Arguments, Mapping[str, int]], Call]:
    return lambda given, ranks: Call(op=op, inputs=_tensors(given)[:1], attributes=attributes)


def _linear(given: Arguments, ranks: Mapping[str, int]) -> Call:
    return Call(op="linear", inputs=_tensors(given, "input", "weight", "bias"))


def _addmm(given: Arguments, ranks: Mapping[str, int]) -> Call:
    return Call(op="matmul", inputs=_tensors(given, "mat1", "mat2", "batch1", "batch2", "self"))


def _matmul(given: Arguments, ranks: Mapping[str, int]) -> Call:
    return Call(op="matmul", inputs=_tensors(given, "self", "mat2", "other", "vec", "tensor", "vec2"))


def _conv(transposed: bool) -> Callable[[Arguments, Mapping[str, int]], Call]:
    def call(given: Arguments, ranks: Mapping[str, int]) -> Call:
        how = {"groups": int(given.get("groups") or 1), "transposed": bool(given.get("transposed", transposed))}
        return Call(op="conv", inputs=_tensors(given, "input", "weight", "bias"), attributes=how)

    return call


def _norm(over: str) -> Callable[[Arguments, Mapping[str, int]], Call]:
    def call(given: Arguments, ranks: Mapping[str, int]) -> Call:
        first = _tensors(given, "input", "self")
        return Call(op="norm", inputs=(*first, *_tensors(given, "weight", "bias")), attributes={"over": over})

    return call


def _embedding(bag: bool) -> Callable[[Arguments, Mapping[str, int]], Call]:
    def call(given: Arguments, ranks: Mapping[str, int]) -> Call:
        return Call(op="embedding", inputs=_tensors(given, "weight", "indices", "offsets"), attributes={"bag": bag})

    return call


def _attention(given: Arguments, ranks: Mapping[str, int]) -> Call:
    inputs = _tensors(given, "query", "key", "value", "attn_mask", "attn_bias")
    return Call(op="attention", inputs=inputs, attributes={"causal": bool(given.get("is_causal", False))})


def _reduction(saves: str) -> Callable[[Arguments, Mapping[str, int]], Call]:
    def call(given: Arguments, ranks: Mapping[str, int]) -> Call:
        inputs = _tensors(given)
        dims = given.get("dim")
        axes = None if dims is None or dims == [] else [dims] if isinstance(dims, int) else list(dims)
        if len(inputs) == 2 and axes is None:  # the elementwise form: max.other
            return Call(op="pointwise", inputs=inputs, attributes={"saves": "inputs"})
        return Call(
            op="reduce", inputs=inputs[:1], attributes={"dims": axes, "keep": bool(given.get("keepdim", False)), "saves": saves}
        )

    return call


def _permute(given: Arguments, ranks: Mapping[str, int]) -> Call:
    source = _tensors(given)[:1]
    rank = ranks[source[0]]
    return Call(op="permute", inputs=source, attributes={"order": [d % rank for d in given["dims"]] if rank else []})


def _transpose(given: Arguments, ranks: Mapping[str, int]) -> Call:
    source = _tensors(given)[:1]
    rank = ranks[source[0]]
    order = list(range(rank))
    if rank:
        a, b = int(given.get("dim0", given.get("axis0", -2))) % rank, int(given.get("dim1", given.get("axis1", -1))) % rank
        order[a], order[b] = order[b], order[a]
    return Call(op="permute", inputs=source, attributes={"order": order})


def _turned(given: Arguments, ranks: Mapping[str, int]) -> Call:
    source = _tensors(given)[:1]
    return Call(op="permute", inputs=source, attributes={"order": list(range(ranks[source[0]]))[::-1]})


def _moved(given: Arguments, ranks: Mapping[str, int]) -> Call:
    source = _tensors(given)[:1]
    rank = ranks[source[0]]
    froms, to = ([d % rank for d in _list(given[key])] for key in ("source", "destination"))
    order = [i for i in range(rank) if i not in froms]
    for target, origin in sorted(zip(to, froms, strict=True)):
        order.insert(target, origin)
    return Call(op="permute", inputs=source, attributes={"order": order})


def _along(op: str) -> Callable[[Arguments, Mapping[str, int]], Call]:
    """Operators that work along one dim of their first operand."""

    def call(given: Arguments, ranks: Mapping[str, int]) -> Call:
        inputs = _tensors(given)
        inputs = inputs if op == "concat" else inputs[:1]
        rank = max(ranks[inputs[0]], 1) if inputs else 1
        return Call(op=op, inputs=inputs, attributes={"dim": int(given.get("dim") or 0) % rank})

    return call


def _index_select(given: Arguments, ranks: Mapping[str, int]) -> Call:
    rank = max(ranks[_tensors(given)[0]], 1)
    return Call(op="embedding", inputs=_tensors(given, "self", "index"), attributes={"dim": int(given.get("dim") or 0) % rank})


def _index(given: Arguments, ranks: Mapping[str, int]) -> Call:
    """Indexing by one tensor is a lookup; by several, nothing is known of the result but its outermost dim."""
    indices = given.get("indices") or []
    named = [(i, v) for i, v in enumerate(indices) if isinstance(v, TensorName)]
    if len(named) == 1:
        inputs = (*_tensors(given, "self"), named[0][1].name)
        return Call(op="embedding", inputs=inputs, attributes={"dim": named[0][0]})
    return Call(op="opaque", inputs=_tensors(given), attributes={"saves": "none"})


def _loss(given: Arguments, ranks: Mapping[str, int]) -> Call:
    inputs = _tensors(given, "self", "target", "weight")
    return Call(op="loss", inputs=inputs, attributes={"dim": 1 if ranks[inputs[0]] > 1 else 0})


def _softmax(given: Arguments, ranks: Mapping[str, int]) -> Call:
    return Call(op="softmax", inputs=_tensors(given)[:1], attributes={"dim": int(given.get("dim") or -1), "saves": "output"})


def _copied(given: Arguments, ranks: Mapping[str, int]) -> Call:
    return Call(op="copy", inputs=_tensors(given)[:1])


def _table() -> dict[str, Callable[[Arguments, Mapping[str, int]], Call]]:
    made: dict[str, Callable[[Arguments, Mapping[str, int]], Call]] = {}
    made |= {name: _plain("pointwise", saves=saves) for saves, names in _POINTWISE.items() for name in names.split()}
    made |= {name: _plain("opaque", saves="inputs") for name in _LOSSES.split()}
    made |= dict.fromkeys(_COPIES.split(), _copied)
    made |= {name: _plain("constant") for name in _CONSTANT.split()}
    made |= {name: _first("reshape") for name in _RESHAPES.split()}
    made |= {name: _first("window", saves="index" if name in {"sort", "topk"} else "none") for name in _WINDOWS.split()}
    made |= {name: _first("pool", saves="index" if "max" in name else "none") for name in _POOLS.split()}
    made |= {name: _first("resize") for name in _RESIZES.split()}
    made |= {name: _reduction(saves) for saves, names in _REDUCTIONS.items() for name in names.split()}
    made |= {name: _conv("transpose" in name) for name in _CONVS.split()}
    made |= {name: _norm("channel") for name in ("batch_norm", "group_norm", "instance_norm", "native_group_norm")}
    made |= {
        name: _norm("channel")
        for name in ("_native_batch_norm_legit", "native_batch_norm", "_native_batch_norm_legit_functional")
    }
    made |= {
        name: _norm("channel")
        for name in ("_native_batch_norm_legit_no_training", "_batch_norm_with_update", "cudnn_batch_norm")
    }
    made |= {name: _norm("last") for name in ("layer_norm", "native_layer_norm", "rms_norm", "_fused_rms_norm")}
    made |= {"linear": _linear, "addmm": _addmm, "baddbmm": _addmm}
    made |= dict.fromkeys(("mm", "bmm", "matmul", "mv", "dot", "inner"), _matmul)
    made |= {"embedding": _embedding(False), "embedding_bag": _embedding(True), "_embedding_bag": _embedding(True)}
    made |= {name: _embedding(True) for name in ("_embedding_bag_forward_only",)}
    made |= {f"_scaled_dot_product_{kind}_attention": _attention for kind in ("flash", "efficient", "cudnn", "fused")}
    made |= {"scaled_dot_product_attention": _attention, "_scaled_dot_product_flash_attention_for_cpu": _attention}
    made |= {"_scaled_dot_product_attention_math": _attention, "_scaled_dot_product_fused_attention_overrideable": _attention}
    made |= {"permute": _permute, "transpose": _transpose, "swapaxes": _transpose, "t": _turned, "numpy_T": _turned}
    made |= {"mT": _transpose, "movedim": _moved}
    made |= dict.fromkeys(("expand", "expand_as", "broadcast_to"), _first("expand"))
    made["broadcast_tensors"] = _plain("expand")
    made |= dict.fromkeys(("slice", "narrow"), _along("slice"))
    made |= dict.fromkeys(("split", "chunk", "split_with_sizes", "tensor_split"), _along("split"))
    made |= {"select": _along("select"), "unbind": _along("select"), "cat": _along("concat"), "concat": _along("concat")}
    made |= {"stack": _plain("opaque", saves="none"), "gather": _first("window", saves="none")}
    made |= {"index_select": _index_select, "index": _index, "take": _plain("opaque", saves="none")}
    made |= dict.fromkeys(
        ("cross_entropy_loss", "nll_loss", "nll_loss_nd", "nll_loss_forward", "nll_loss2d_forward", "nll_loss2d"), _loss
    )
    made |= dict.fromkeys(("softmax", "_softmax", "log_softmax", "_log_softmax", "_safe_softmax"), _softmax)
    return made


def _list(value: Any) -> list[int]:
    return [value] if isinstance(value, int) else list(value)


_RULES = _table()
