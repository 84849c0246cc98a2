"""A place of birth proves a category only where the table says so, and the table names functions that exist."""

import ast
from pathlib import Path

import deepspeed
import pytest
import torch
import transformers

from tests.tools.at_least_one import at_least_one
from tests.tools.known import known
from zerobench.common.vocabulary import Category
from zerobench.rank.ledger import sites

ROOTS = {"deepspeed": Path(deepspeed.__file__).parent, "transformers": Path(transformers.__file__).parent}
ROOTS |= {"torch": Path(torch.__file__).parent, "zerobench": Path(sites.__file__).parents[2]}


def test_deepspeeds_bucket_function_proves_reduce_buffers():
    site = known(sites.judge("/x/site-packages/deepspeed/runtime/zero/stage_1_and_2.py", "setup_buckets"))
    assert site.proves is Category.REDUCE_BUFFERS


def test_an_unknown_function_of_an_unknown_package_is_no_site():
    assert sites.judge("/home/someone/train.py", "step") is None


def test_within_the_backward_pass_the_node_that_runs_is_the_site_where_no_known_function_is_on_the_stack():
    born: list[sites.Site] = []
    weight = torch.ones(2, requires_grad=True)
    product = weight * 3
    product.register_hook(lambda _gradient: born.append(sites.SiteFinder()()))
    # As CUDA's thread does, past `torch.autograd.graph`.
    run = torch.autograd.Variable._execution_engine.run_backward
    run((product,), (torch.ones(2),), False, False, (), True, True)
    assert [(site.name, site.proves, site.node is None) for site in born] == [
        ("autograd:MulBackward0", sites.Origin.AUTOGRAD, False)
    ]
    assert sites.SiteFinder()() == sites.Site("unknown", None)


def test_of_torchs_graph_the_entry_of_the_backward_pass_alone_is_a_site():
    found = [sites.judge("/x/torch/autograd/graph.py", name) for name in ("_engine_run_backward", "save_on_cpu")]
    assert [site is None for site in found] == [False, True]


def test_a_wrapper_is_passed_over_for_its_caller():
    assert sites.judge("/x/deepspeed/utils/nvtx.py", "wrapped_fn") is None


@pytest.mark.parametrize(("file", "prefix"), [(f, p) for f, p, _ in sites._RULES])
def test_every_row_of_the_table_still_names_code_that_exists(file, prefix):
    assert_exists(file, prefix)


@pytest.mark.parametrize("name", [*sites._TRANSPARENT, *sites._HOST_SITES])
def test_every_wrapper_and_every_place_on_the_host_still_exists(name):
    file, _, function = name.partition(":")
    assert_exists(file, function)


def test_every_package_that_is_looked_into_exists():
    for package in at_least_one(sites._PACKAGES):
        name, _, rest = package.strip("/").partition("/")
        assert name not in ROOTS or (ROOTS[name] / rest).is_dir(), package


def test_every_row_of_the_table_lies_in_a_package_that_is_looked_into():
    for file, prefix, proves in at_least_one(sites._RULES):
        site = sites.judge(f"/x/site-packages/{file}", prefix)
        assert site is not None, file
        assert site.proves is proves, (file, prefix)


def test_what_is_born_in_the_swappers_lies_on_the_host():
    site = known(sites.judge("/x/deepspeed/runtime/swap_tensor/utils.py", "__init__"))
    assert site.on_host
    site = known(sites.judge("/x/deepspeed/runtime/zero/stage3.py", "step"))
    assert not site.on_host


def test_no_row_of_the_table_is_hidden_by_an_earlier_one():
    for place, (file, prefix, _) in at_least_one(enumerate(sites._RULES)):
        hiders = [r for r in sites._RULES[:place] if file.startswith(r[0]) and prefix.startswith(r[1])]
        assert not hiders, (file, prefix, hiders)


def assert_exists(file: str, prefix: str) -> None:
    """Files that begin with `file`, and in one of them, where it is given, a function that begins with `prefix`."""
    package, _, rest = file.partition("/")
    if package not in ROOTS:
        pytest.skip(f"{package} has an environment of its own")
    where = ROOTS[package] / rest
    inside = where.rglob("*.py") if where.is_dir() else where.parent.glob(f"{where.name}*")
    files = (
        [where] if where.suffix == ".py" else sorted(path for path in inside if path.suffix == ".py" or path.is_dir())
    )
    assert files, f"{file} is gone"
    assert all(path.exists() for path in files), f"{file} is gone"
    if prefix:
        assert any(_defines(path, prefix) for path in files if path.is_file()), f"no function {prefix}* in {file}"


def _defines(path, prefix):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return any(isinstance(node, kinds) and node.name.startswith(prefix) for node in ast.walk(tree))
