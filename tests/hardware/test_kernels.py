"""Kernel times: anchors from public tables, physical limits as properties, and the fits that come with the package."""

import csv
import gzip
import importlib
import os
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.documents import parse_yaml
from shardwright.errors import DamagedFileError, UnknownNameError, UnsupportedError
from shardwright.hardware.kernel_fits import fit_from_dict
from shardwright.hardware.kernels import (
    DeviceRates,
    attention_s,
    fit_ids,
    gemm_s,
    load_fit,
    memory_bound_s,
    precision_rates,
    visible_keys,
)

ROOT = Path(__file__).resolve().parents[2]
H100 = DeviceRates(peak_flops=989e12, memory_bytes_per_s=3.35e12, sm_count=132)
RATES = {
    "a100": DeviceRates(peak_flops=312e12, memory_bytes_per_s=2.039e12, sm_count=108),
    "h100": H100,
    "h200": replace(H100, memory_bytes_per_s=4.8e12),
    "b200": DeviceRates(peak_flops=2250e12, memory_bytes_per_s=8e12, sm_count=148),
    "gb200": DeviceRates(peak_flops=2500e12, memory_bytes_per_s=8e12, sm_count=148),
    "b300": DeviceRates(peak_flops=2250e12, memory_bytes_per_s=8e12, sm_count=148),
    "l40s": DeviceRates(peak_flops=362e12, memory_bytes_per_s=0.864e12, sm_count=142),
}
SYSTEMS = {"a100": "a100_sxm", "h100": "h100_sxm", "h200": "h200_sxm", "b200": "b200_sxm", "b300": "b300_sxm"}
sizes = st.floats(0.05, 200_000.0)
fits = st.sampled_from(["a100", "h100", "b200", "v100", "mi300x", "generic"])


def isolated(name):
    return replace(load_fit(name), sustained_factor=1.0, attention_sustained_factor=1.0, throttles_in_training=True)


# ---- the fits --------------------------------------------------------------------------------------------------


def test_all_devices_of_the_brief_have_a_fit():
    wanted = "a100 h100 h200 b200 gb200 b300 l40s v100 mi300x mi325x mi350x mi355x h100-500w gb300 generic"
    assert set(wanted.split()) <= set(fit_ids())


@pytest.mark.parametrize("name", fit_ids())
def test_fit_is_physical_and_tells_its_origin(name):
    fit = load_fit(name)
    assert fit.id == name
    assert 0 < fit.gemm.peak_fraction <= 1
    assert all(0 < share < 1 for _, share in fit.attention.peak_fraction)
    assert 0 < fit.gemm.memory_fraction <= 1
    assert 0.6 < fit.memory_fraction < 1
    assert 1.0 <= fit.sustained_factor < 1.5
    assert fit.backend_factor["table"] > 0
    sections = {"gemm", "attention", "sustained_factor", "attention_sustained_factor", "memory_fraction", "precision_speedup"}
    assert set(fit.provenance) == sections
    assert {p.origin for p in fit.provenance.values()} <= {"measured", "transferred", "assumed"}
    assert all(p.source for p in fit.provenance.values())


@pytest.mark.parametrize("name", sorted(RATES))
def test_measured_fits_state_a_small_held_out_error(name):
    origin = load_fit(name).provenance["gemm"]
    assert origin.origin == "measured"
    assert origin.rows > 20_000
    assert origin.mean_error < 0.08
    assert origin.median_error < origin.p90_error < 0.17


def test_transferred_fits_state_wider_errors_than_their_sibling():
    for name, sibling in (("v100", "a100"), ("mi355x", "h100"), ("gb300", "gb200"), ("generic", "h100")):
        mine, theirs = load_fit(name).provenance["gemm"], load_fit(sibling).provenance["gemm"]
        assert mine.origin != "measured"
        assert mine.median_error > theirs.median_error
        assert mine.p90_error > theirs.p90_error


def test_unknown_fit_names_the_nearest():
    with pytest.raises(UnknownNameError) as caught:
        load_fit("h10")
    assert "h100" in caught.value.hint


@pytest.mark.parametrize(
    "damage", [{"gemm": {}}, {"surplus": 1}, {"attention": {"peak_fraction": 3}}, {"provenance": {"gemm": 1}}]
)
def test_damaged_fit_is_refused(damage):
    text = (ROOT / "hardware/presets/kernels/h100.yaml").read_text(encoding="utf-8")
    data = {**parse_yaml(text, "h100.yaml").data, **damage}
    with pytest.raises(DamagedFileError, match="h100"):
        fit_from_dict(data)


def test_products_of_all_sizes_share_the_clocks_of_training():
    """In isolation a product of 17.6 TFLOP runs at a lower rate than one of 0.14; in training on A100 both do."""

    def rates(fit):
        small, large = (float(2 * n**3 / gemm_s(fit, RATES["a100"], n, n, n)) for n in (4096.0, 20480.0))
        return small, large

    alone, trained = rates(isolated("a100")), rates(load_fit("a100"))
    assert not load_fit("a100").throttles_in_training
    slope = load_fit("a100").gemm.throttle_per_decade
    assert trained[1] / alone[1] == pytest.approx((1 + slope * np.log10(2 * 20480.0**3 / 1e11)) / 1.112, rel=0.01)
    assert trained[0] / alone[0] == pytest.approx((1 + slope * np.log10(2 * 4096.0**3 / 1e11)) / 1.112, rel=0.01)


def test_sustained_factors_were_found_in_training_tables():
    assert load_fit("a100").sustained_factor == pytest.approx(1.09, abs=0.03)
    assert load_fit("b200").sustained_factor == pytest.approx(1.33, abs=0.04)
    assert load_fit("h100").sustained_factor == pytest.approx(1.20, abs=0.03)


def test_files_are_exactly_what_the_script_renders(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    script = importlib.import_module("kernel_documents")
    for name in fit_ids():
        text = (ROOT / f"hardware/presets/kernels/{name}.yaml").read_text(encoding="utf-8")
        assert script.render(parse_yaml(text, name).data) == text


# ---- matrix products -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "m", "n", "k", "measured_s"),
    [  # ai-dynamo/aiconfigurator, gemm tables, bf16
        ("a100", 4096, 4096, 4096, 548.9e-6),
        ("a100", 8192, 12288, 4096, 3307.4e-6),
        ("h100", 2048, 6144, 4096, 142.6e-6),
        ("h100", 4096, 4096, 4096, 174.3e-6),
        ("h100", 16384, 5120, 5120, 1071.8e-6),
        ("b200", 2048, 1536, 12288, 55.8e-6),
        ("b200", 16384, 5120, 5120, 560.3e-6),
    ],
)
def test_public_products_are_met(name, m, n, k, measured_s):
    assert float(gemm_s(isolated(name), RATES[name], m, n, k)) == pytest.approx(measured_s, rel=0.08)


def test_training_time_is_isolated_time_times_the_sustained_factor():
    fit = load_fit("b200")
    slow, fast = (float(gemm_s(f, RATES["b200"], 4096, 8192, 8192)) for f in (fit, isolated("b200")))
    assert slow / fast == pytest.approx(fit.sustained_factor)


@given(fits, sizes, sizes, sizes, st.floats(1.0, 512.0))
def test_product_never_beats_the_datasheet(name, m, n, k, groups):
    fit, rates = load_fit(name), H100
    took = float(gemm_s(fit, rates, m, n, k, groups))
    assert np.isfinite(took)
    assert took >= 2 * m * n * k * groups / rates.peak_flops
    assert took >= 2 * groups * (m * k + k * n + m * n) / rates.memory_bytes_per_s


@given(fits, sizes, sizes, sizes, st.floats(1.0, 64.0), st.floats(1.0, 4.0))
def test_faster_device_is_never_slower(name, m, n, k, groups, factor):
    fit = load_fit(name)
    base = float(gemm_s(fit, H100, m, n, k, groups)) * (1 + 1e-12)
    assert float(gemm_s(fit, replace(H100, peak_flops=H100.peak_flops * factor), m, n, k, groups)) <= base
    assert float(gemm_s(fit, replace(H100, memory_bytes_per_s=H100.memory_bytes_per_s * factor), m, n, k, groups)) <= base


@given(fits, sizes, sizes, sizes, st.floats(1.0, 4.0))
def test_wider_elements_and_deeper_sums_are_never_faster(name, m, n, k, factor):
    fit = load_fit(name)
    base = float(gemm_s(fit, H100, m, n, k)) * (1 - 1e-12)
    assert float(gemm_s(fit, H100, m, n, k, 1.0, 2.0 * factor, 2.0)) >= base
    assert float(gemm_s(fit, H100, m, n, k, 1.0, 2.0, 2.0 * factor)) >= base


def test_arrays_broadcast_to_the_times_of_single_shapes():
    fit = load_fit("h100")
    m, n = np.array([[0.4], [128.0], [4096.0]]), np.array([512.0, 1000.0])
    times = gemm_s(fit, H100, m, n, 2048.0, [1.0, 8.0])
    assert times.shape == (3, 2)
    assert times[2, 1] == pytest.approx(float(gemm_s(fit, H100, 4096, 1000, 2048, 8)))
    assert times[0, 0] == pytest.approx(float(gemm_s(fit, H100, 0.4, 512, 2048, 1)))


def test_tiles_of_groups_share_waves():
    fit = load_fit("h100")
    one, eight = (float(gemm_s(fit, H100, 256, 1024, 4096, g)) for g in (1, 8))
    assert one < eight < 8 * one


def test_wave_quantisation_makes_a_tile_more_than_a_full_wave_costly():
    fit = isolated("a100")
    full, over = (float(gemm_s(fit, RATES["a100"], m, 1536, 4096)) for m in (2304, 2305))  # 18 x 6 tiles on 108 SMs
    assert over > 1.04 * full


# ---- precision -------------------------------------------------------------------------------------------------


def test_fp8_is_faster_by_the_speedup_on_large_products():
    fit = isolated("h100")
    bf16 = float(gemm_s(fit, H100, 16384, 8192, 8192))
    fp8 = float(gemm_s(fit, precision_rates(fit, H100, "fp8-tensorwise"), 16384, 8192, 8192, 1, 1.0, 2.0))
    assert bf16 / fp8 == pytest.approx(fit.precision_speedup["fp8"], rel=0.05)


def test_precision_without_units_is_refused():
    for name, precision in (("a100", "fp8"), ("h100", "nvfp4"), ("v100", "bf16")):
        with pytest.raises(UnsupportedError) as caught:
            precision_rates(load_fit(name), H100, precision)
        assert "known there" in caught.value.hint


def test_newer_formats_are_ordered():
    speedup = load_fit("b200").precision_speedup
    assert 1.0 < speedup["mxfp8"] < speedup["fp8-tensorwise"] < speedup["nvfp4"]
    assert load_fit("b300").precision_speedup["nvfp4"] > speedup["nvfp4"]


# ---- attention -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "batch", "heads", "tokens", "measured_s"),
    [  # ai-dynamo/aiconfigurator, context attention tables, bf16, 8 kv heads of 128; they include cache writes
        ("a100", 1, 64, 8192, 5.471e-3),
        ("h100", 1, 64, 8192, 2.165e-3),
        ("h100", 2, 32, 16384, 8.195e-3),
        ("b200", 1, 64, 8192, 1.045e-3),
        ("b200", 2, 32, 16384, 3.828e-3),
    ],
)
def test_public_attention_is_met(name, batch, heads, tokens, measured_s):
    took = attention_s(isolated(name), RATES[name], batch, heads, 8, tokens, tokens, 128, 128)
    assert float(took) == pytest.approx(measured_s, rel=0.08)


def attention(name="h100", rates=H100, heads=32, kv=8, q=8192, keys=8192, qk=128, v=128, **options):
    return float(attention_s(load_fit(name), rates, 1, heads, kv, q, keys, qk, v, **options))


def test_visible_keys_counts_the_mask():
    assert visible_keys(4, causal=True) == pytest.approx((1 + 2 + 3 + 4) / 4)
    assert visible_keys(4, causal=False) == 4
    assert visible_keys(4, causal=True, window=2) == pytest.approx((1 + 2 + 2 + 2) / 4)
    assert visible_keys(4, causal=True, window=99) == visible_keys(4, causal=True)


def test_causal_mask_saves_nearly_half():
    assert 0.5 < attention(q=65536, keys=65536) / attention(q=65536, keys=65536, causal=False) < 0.55
    assert attention(q=1024, keys=1024, heads=128) / attention(q=1024, keys=1024, heads=128, causal=False) > 0.5


def test_window_limits_the_keys():
    assert attention(window=128) < 0.2 * attention()
    assert attention(window=8192) == attention()
    assert attention(q=16384, keys=16384, window=1024) == pytest.approx(2 * attention(window=1024), rel=0.05)


def test_backward_pass_costs_two_and_a_half_times_the_flops_at_a_lower_rate():
    for name in fit_ids():
        ratio = attention(name, backward=True, q=16384, keys=16384) / attention(name, q=16384, keys=16384)
        assert 2.5 < ratio < 3.6


def test_small_heads_and_short_sequences_are_less_efficient():
    per_flop = {d: attention(qk=d, v=d) / d for d in (64, 128, 256)}
    assert per_flop[64] > per_flop[128] > per_flop[256]
    assert attention(q=1024, keys=1024, heads=2048) / 1024**2 / 2048 > 1.3 * attention(q=16384, keys=16384) / 16384**2 / 32


def test_unequal_head_sizes_are_padded_where_the_kernel_pads():
    def padding(name):
        mixed, padded = (attention(name, heads=128, kv=128, qk=192, v=v) for v in (128, 192))
        return mixed / padded

    assert padding("a100") == pytest.approx(1.0, abs=0.03)
    assert padding("b200") == pytest.approx(320 / 384, abs=0.05)


def test_few_blocks_leave_multiprocessors_idle():
    assert attention("b200", RATES["b200"], heads=2, kv=1, q=4096, keys=4096) > 0.4 * attention(
        "b200", RATES["b200"], heads=16, kv=1, q=4096, keys=4096
    )


def test_backend_factor_and_unknown_backend():
    assert attention(backend="fa2") == pytest.approx(attention() / 0.6, rel=0.01)
    with pytest.raises(UnsupportedError, match="nonsense"):
        attention(backend="nonsense")


@given(
    fits,
    st.integers(1, 64),
    st.integers(1, 128),
    st.floats(1.0, 100_000.0),
    st.floats(1.0, 100_000.0),
    st.sampled_from([32, 64, 80, 128, 192, 256]),
    st.booleans(),
    st.booleans(),
    st.floats(1.0, 4.0),
)
def test_attention_is_bounded_by_the_datasheet_and_monotone(name, batch, heads, q, keys, dim, causal, backward, factor):
    fit = load_fit(name)

    def took(rates):
        return float(attention_s(fit, rates, batch, heads, 1, q, keys, dim, dim, causal=causal, backward=backward))

    base = took(H100)
    flops = 4 * batch * heads * q * float(visible_keys(keys, causal=causal)) * dim * (2.5 if backward else 1.0)
    assert np.isfinite(base)
    assert base >= flops / H100.peak_flops
    assert took(replace(H100, peak_flops=H100.peak_flops * factor)) <= base * (1 + 1e-12)
    assert took(replace(H100, memory_bytes_per_s=H100.memory_bytes_per_s * factor)) <= base * (1 + 1e-12)


# ---- memory ----------------------------------------------------------------------------------------------------


def test_memory_bound_time_is_linear_and_zero_for_nothing():
    fit = load_fit("h100")
    times = memory_bound_s(fit, H100, [0.0, 1e9, 2e9])
    assert times[0] == 0
    assert times[2] == pytest.approx(2 * times[1])
    assert times[1] == pytest.approx(1e9 / (3.35e12 * 0.8866), rel=1e-3)


# ---- against the reference tables ------------------------------------------------------------------------------


def reference():
    folder = os.environ.get("SHARDWRIGHT_REFERENCE_DATA")
    if not folder:
        pytest.skip("SHARDWRIGHT_REFERENCE_DATA is not set")
    return Path(folder) / "calibration" / "aiconfigurator"


@pytest.mark.parametrize("name", sorted(SYSTEMS))
def test_mean_error_over_the_whole_table(name):
    path = reference() / f"gemm_bf16_{SYSTEMS[name]}.csv.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = np.array([row for row in csv.reader(file) if row[0].isdigit()], dtype=np.float64)
    m, n, k, measured_ms = rows[rows[:, :3].min(axis=1) >= 1024].T
    errors = np.abs(gemm_s(isolated(name), RATES[name], m, n, k) / (measured_ms * 1e-3) - 1)
    assert errors.mean() < 0.075
    assert asdict(load_fit(name).provenance["gemm"])["mean_error"] == pytest.approx(errors.mean(), abs=0.01)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("precision_speedup", "bf16"), []),
        (("gemm", "norm_power"), [[]]),
        (("gemm", "peak_fraction"), 1e-308),
        (("gemm", "tiles"), [["a", 1]]),
        (("attention", "start_s"), []),
        (("attention", "peak_fraction"), []),
        (("provenance", "gemm", "origin"), "guessed"),
        (("provenance", "gemm", "source"), True),
        (("provenance", "gemm", "median_error"), {}),
    ],
)
def test_every_constant_of_a_fit_is_of_its_type(place, value):
    data = parse_yaml((ROOT / "hardware/presets/kernels/h100.yaml").read_text(encoding="utf-8"), "h100.yaml").data
    *folders, name = place
    inner = data
    for folder in folders:
        inner = inner[folder]
    inner[name] = value
    with pytest.raises(DamagedFileError, match="h100"):
        fit_from_dict(data)
