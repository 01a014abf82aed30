"""Layers of each chunk, for every way Megatron has of being told."""

from itertools import product

import pytest

from shardwright.errors import ConflictError, InvalidValueError, ShardwrightError
from shardwright.planner.layouts import layout_of
from shardwright.planner.megatron_splits import SplitFlags, stage_chunks


@pytest.mark.parametrize(
    ("flags", "layers", "pp", "chunks"),
    [
        (SplitFlags(), 32, 4, (8, 8, 8, 8)),
        (SplitFlags(first=10), 46, 4, (10, 12, 12, 12)),
        (SplitFlags(first=11, last=11), 46, 4, (11, 12, 12, 11)),
        (SplitFlags(last=4), 7, 2, (3, 4)),
        (SplitFlags(first=4, last=4, virtual_stages_per_rank=2), 24, 4, (2, 4, 4, 2, 2, 4, 4, 2)),
        (SplitFlags(embedding=True, loss=True), 94, 4, (23, 24, 24, 23)),
        (SplitFlags(embedding=True, loss=True, virtual_stages_per_rank=3), 94, 32, (0, *[1] * 94, 0)),
        (SplitFlags(embedding=True, loss=True, virtual_stages_per_rank=2), 78, 8, (4, *[5] * 14, 4)),
        (SplitFlags(loss=True), 31, 4, (8, 8, 8, 7)),
        (SplitFlags(layers_per_virtual_stage=4), 32, 4, (4,) * 8),
        (SplitFlags(virtual_stages_per_rank=1), 32, 4, (8,) * 4),
        (SplitFlags(layout="Et*3|(tt|)*29m|L"), 61, 16, (3, *[2] * 29, 0, 0)),
    ],
)
def test_splits(flags: SplitFlags, layers: int, pp: int, chunks: tuple[int, ...]) -> None:
    mtp = 1 if flags.layout else 0
    assert stage_chunks(flags, layers=layers, mtp_layers=mtp, pp=pp) == chunks
    assert sum(chunks) == layers


@pytest.mark.parametrize(
    ("flags", "layers", "pp", "says", "remedy"),
    [
        (SplitFlags(), 30, 4, "30 layers do not divide", "'Et*7|t*8|t*8|t*7L'"),
        (SplitFlags(), 46, 4, "2 would be left over", "'Et*11|(t*12|)*2t*11L'"),
        (SplitFlags(), 3, 4, "3 layers", "pp 3 or less"),
        (SplitFlags(loss=True), 32, 4, "1 counted", "Et*8"),
        (SplitFlags(first=7), 30, 4, "23 layers are left for the other 3", "pipeline-num-layers 6"),
        (SplitFlags(first=3, last=3), 7, 2, "3 and 3 layers", "sum to 7"),
        (SplitFlags(first=3), 7, 1, "with pp 1", "pp above 1"),
        (SplitFlags(first=8), 8, 2, "0 layers are left", "pipeline-num-layers 7"),
        (SplitFlags(first=5, virtual_stages_per_rank=2), 8, 2, "5 layers of rank 0 in 2", "1 or 5"),
        (SplitFlags(layers_per_virtual_stage=3), 32, 4, "virtual stages of 3", "2 or 4"),
        (SplitFlags(virtual_stages_per_rank=3), 32, 4, "in 3 virtual stages", "2 or 4"),
        (SplitFlags(virtual_stages_per_rank=2), 32, 1, "2 virtual stages with pp 1", "pp above 1"),
        (SplitFlags(layers_per_virtual_stage=2, virtual_stages_per_rank=2), 8, 2, "exclude", "keep one"),
        (SplitFlags(layout="Et|tL", virtual_stages_per_rank=2), 2, 2, "exclude", "keep one"),
        (SplitFlags(layout="Et|tL", first=1), 2, 2, "exclude", "keep one"),
        (SplitFlags(embedding=True, first=1), 2, 2, "exclude", "keep one"),
        (SplitFlags(first=4, layers_per_virtual_stage=2), 8, 2, "num-layers-per-virtual", "num-virtual-stages-per"),
        (SplitFlags(layout="Et|tL"), 3, 2, "has 2 layers", "3 times"),
    ],
)
def test_impossible_splits_name_a_remedy(flags: SplitFlags, layers: int, pp: int, says: str, remedy: str) -> None:
    with pytest.raises(ConflictError) as caught:
        stage_chunks(flags, layers=layers, pp=pp)
    assert says in caught.value.message
    assert remedy in caught.value.hint
    assert caught.value.where.startswith("--")


def test_counts_below_one_are_refused() -> None:
    for flags in (SplitFlags(first=0), SplitFlags(virtual_stages_per_rank=-1)):
        with pytest.raises(InvalidValueError):
            stage_chunks(flags, layers=8, pp=2)


@pytest.mark.parametrize("pp", [2, 3, 4, 6])
def test_the_layout_of_a_split_says_the_same(pp: int) -> None:
    for layers, embedding, loss, vpp in product(range(4, 40, 5), (False, True), (False, True), (None, 2, 3)):
        flags = SplitFlags(embedding=embedding, loss=loss, virtual_stages_per_rank=vpp)
        try:
            chunks = stage_chunks(flags, layers=layers, pp=pp)
        except ConflictError:
            continue
        text = str(layout_of(chunks))
        assert stage_chunks(SplitFlags(layout=text), layers=layers, pp=pp) == chunks


@pytest.mark.frameworks
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_megatron_builds_the_same_layers() -> None:
    """`get_num_layers_to_build` over all ranks and chunks; where it refuses, or drops layers, we refuse."""
    pytest.importorskip("megatron.core")
    block = pytest.importorskip("megatron.core.transformer.transformer_block")
    config = pytest.importorskip("megatron.core.transformer.transformer_config")
    compared = 0
    choices = product((12, 16, 22, 30), (2, 3, 4), (None, 2, 3), (False, True), (False, True), (None, 2, 4, 6), (None, 2, 4))
    for layers, pp, vpp, embedding, loss, first, last in choices:
        flags = SplitFlags(first=first, last=last, embedding=embedding, loss=loss, virtual_stages_per_rank=vpp)
        expected = _built(block, config, layers, pp, vpp, flags)
        try:
            chunks = stage_chunks(flags, layers=layers, pp=pp)
        except ShardwrightError:
            chunks = None
        assert chunks == expected, (layers, pp, flags)
        compared += 1
    assert compared > 1000


def _built(block, config, layers: int, pp: int, vpp: int | None, flags: SplitFlags) -> tuple[int, ...] | None:
    import torch

    try:
        made = config.TransformerConfig(
            num_layers=layers,
            hidden_size=64,
            num_attention_heads=4,
            pipeline_model_parallel_size=pp,
            virtual_pipeline_model_parallel_size=vpp,
            pipeline_dtype=torch.float32,
            num_layers_in_first_pipeline_stage=flags.first,
            num_layers_in_last_pipeline_stage=flags.last,
            account_for_embedding_in_pipeline_split=flags.embedding,
            account_for_loss_in_pipeline_split=flags.loss,
        )
        stages = range(vpp or 1)
        counts = [
            block.get_num_layers_to_build(made, vp_stage=v if vpp else None, pp_rank=r) for v in stages for r in range(pp)
        ]
    except (AssertionError, ValueError):
        return None
    return tuple(counts) if sum(counts) == layers else None
