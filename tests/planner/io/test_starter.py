"""First workload files: from a list of tables, and made up."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.errors import InvalidInputError
from planner.io import load_workload_file
from planner.io.workload.starter import listed_text, placeholder_text

LIST = """\
table,rows,dim,pooling,zipf_exponent
user,1000000,64,1,1.05
item,5000000,128,20.5,
place,1000,32,,
"""


def test_a_list_becomes_a_file_to_edit(tmp_path: Path) -> None:
    """Tables as listed; what the list does not say is there and marked."""
    listed, path = tmp_path / "tables.csv", tmp_path / "model.yaml"
    listed.write_text(LIST)
    path.write_text(listed_text(listed, "model"))
    file = load_workload_file(path)
    user, item, place = file.workload.tables
    assert (user.name, user.num_embeddings, user.embedding_dim) == ("user", 1_000_000, 64)
    assert item.features[0].pooling_factor == 20.5
    assert place.features[0].pooling_factor == 1.0
    assert file.workload.name == "model"
    assert file.workload.dense.top_mlp
    assert any("2 tables have no distribution" in text for text in file.warnings)
    inside = path.read_text().split("training:")[1].splitlines()
    unmarked = [line.split("#")[0].strip() for line in inside if "assumed" not in line]
    said = ("- {name:", "num_dense", "bottom_mlp", "top_mlp", "interaction", "dtype: bf16")
    assert [line for line in unmarked if line and not line.startswith(said)] == []


def test_a_list_may_have_any_name(tmp_path: Path) -> None:
    """It was read as YAML unless its name ended in .csv; a workload lost all but its tables."""
    text = "name,rows,dim\nuser,100,8\n"
    for name in ("LIST.CSV", "list.txt"):
        (tmp_path / name).write_text(text)
        assert "name: user" in listed_text(tmp_path / name, "mine")
    assert len(load_workload_file(tmp_path / "LIST.CSV").workload.tables) == 1
    (tmp_path / "model.yaml").write_text(listed_text(tmp_path / "list.txt", "mine"))
    with pytest.raises(InvalidInputError, match="column 'num_embeddings' is missing"):
        listed_text(tmp_path / "model.yaml", "again")


def test_a_broken_list_is_refused_with_its_line(tmp_path: Path) -> None:
    listed = tmp_path / "tables.csv"
    listed.write_text(LIST.replace("5000000", "many"))
    with pytest.raises(InvalidInputError, match=r"tables\.csv:3.*num_embeddings"):
        listed_text(listed, "model")


@pytest.mark.parametrize("num_tables", [1, 26, 300])
def test_made_up_tables_are_a_workload_and_always_the_same(tmp_path: Path, num_tables: int) -> None:
    path = tmp_path / "model.yaml"
    path.write_text(placeholder_text(num_tables, "model"))
    workload = load_workload_file(path).workload
    assert len(workload.tables) == num_tables
    assert placeholder_text(num_tables, "model") == path.read_text()
