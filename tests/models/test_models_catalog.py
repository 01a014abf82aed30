"""Presets by id and alias, files and folders, and how light it is."""

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_configs import CONFIGS, outcome

from shardwright.errors import DamagedFileError, InvalidValueError, ShardwrightError, UnknownNameError
from shardwright.models import catalog
from shardwright.models.catalog import load_model, model_ids
from shardwright.models.graph import ModelGraph

CONTRACT = """
    gpt2 gpt3-175b llama2-7b llama2-70b llama3-8b llama3-70b llama3.1-8b llama3.1-70b llama3.1-405b mistral-7b mixtral-8x7b
    mixtral-8x22b qwen2.5-72b qwen3-8b qwen3-32b qwen3-30b-a3b qwen3-235b-a22b deepseek-v2 deepseek-v3 kimi-k2 gpt-oss-20b
    gpt-oss-120b glm-4.5-air megatron-22b megatron-175b megatron-530b megatron-1t
"""

YAML = """\
name: tiny
layers: 4
hidden: 64
heads: 8
kv_heads: 2
ffn: 160
vocab: 512
"""


def test_all_ids_of_the_contract_are_there():
    assert set(CONTRACT.split()) <= set(model_ids())
    assert list(model_ids()) == sorted(model_ids())


def test_listing_ids_reads_no_file(monkeypatch):
    monkeypatch.setattr(catalog, "parse_yaml", None)
    assert "llama3.1-8b" in model_ids()


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("Llama3.1-8B", "llama3.1-8b"),
        ("meta-llama/Llama-3.1-8B", "llama3.1-8b"),
        ("meta-llama/Meta-Llama-3-70B-Instruct", "llama3-70b"),
        ("meta-llama/Llama-2-7b-hf", "llama2-7b"),
        ("mistralai/Mixtral-8x22B-v0.1", "mixtral-8x22b"),
        ("deepseek-ai/DeepSeek-V3-Base", "deepseek-v3"),
        ("moonshotai/Kimi-K2-Instruct", "kimi-k2"),
        ("openai/gpt-oss-120b", "gpt-oss-120b"),
        ("zai-org/GLM-4.5-Air", "glm-4.5-air"),
        ("qwen3_235b_a22b", "qwen3-235b-a22b"),
        ("gpt3", "gpt3-175b"),
        ("mistralai/Mistral-7B-v0.1", "mistral-7b"),
        ("MT-NLG-530B", "megatron-530b"),
    ],
)
def test_aliases(alias, name):
    assert load_model(alias).name == name


@pytest.mark.parametrize(
    ("given_", "hint"),
    [
        ("lama3.1-8b", "llama3.1-8b"),
        ("deepseek-v4", "deepseek-v3"),
        ("Mistral-7B-v0.2", "mistral-7b"),
        ("", "known"),
        ("  ", "known"),
    ],
)
def test_an_unknown_word_is_answered_with_the_nearest(given_, hint):
    with pytest.raises(UnknownNameError) as caught:
        load_model(given_)
    assert hint in caught.value.hint


@given(st.text(max_size=300))
def test_any_word_gives_a_model_or_our_error(text):
    made = outcome(load_model, text)
    assert isinstance(made, (ModelGraph, ShardwrightError))


def test_the_same_config_from_file_and_folder(tmp_path):
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIGS["llama"]))
    assert load_model(str(folder)) == load_model(str(folder / "config.json"))
    assert load_model(str(folder)).name == "my-model"


def test_a_model_yaml(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(YAML)
    model = load_model(str(path))
    assert (model.name, model.layers, model.spec.kv_heads, model.spec.head_dim) == ("tiny", 4, 2, 8)


@pytest.mark.parametrize(
    ("text", "error", "place"),
    [
        (YAML.replace("hidden", "hiden"), ShardwrightError, ":3: hiden"),
        (YAML.replace("heads: 8", "heads: 7"), ShardwrightError, ": heads"),
        (YAML.replace("512", "-5"), InvalidValueError, ":7: vocab"),
        (YAML + "vocab: 3\n", InvalidValueError, ""),
        (YAML.replace("512", ".nan"), ShardwrightError, ""),
        ("", DamagedFileError, ""),
        ("- 1\n- 2\n", DamagedFileError, ""),
        ("a: [", DamagedFileError, ""),
    ],
)
def test_a_damaged_yaml_is_refused_with_its_place(tmp_path, text, error, place):
    path = tmp_path / "m.yaml"
    path.write_text(text)
    with pytest.raises(error) as caught:
        load_model(str(path))
    assert caught.value.where.startswith(str(path))
    assert place in caught.value.where


def test_missing_files_and_folders_without_config(tmp_path):
    with pytest.raises(DamagedFileError, match="no such file"):
        load_model(str(tmp_path / "none.json"))
    with pytest.raises(DamagedFileError, match=r"holds no config\.json"):
        load_model(str(tmp_path))


def test_presets_are_read_without_networkx_and_pydantic():
    code = (
        "import sys; from shardwright.models.catalog import load_model; load_model('deepseek-v3').parameters;"
        "heavy = {'networkx', 'pydantic', 'numpy', 'torch'} & set(sys.modules); sys.exit(f'{heavy}' if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
