"""What is loaded when: nothing before it is asked for, so that no name waits for what it does not need."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import qkv
import qkv.models

OTHERS = {"array_api_compat", "jinja2", "llvmlite", "ml_dtypes", "numba", "numpy", "rich"} | {
    *("safetensors", "tokenizers", "matplotlib", "huggingface_hub", "gguf", "torch", "transformers"),
}
"""What qkv can make use of, but for typer, which is what makes it a command."""


def loaded_by(code):
    """The packages that are there after some lines of Python in a fresh process, and the modules of qkv."""
    listing = "import sys; print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", f"{code}\n{listing}"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    modules = set(done.stderr.split())
    return {name.split(".")[0] for name in modules}, {name for name in modules if name.startswith("qkv")}


def command(*arguments):
    """Code that runs the command line and goes on after it."""
    return (
        f"import sys; sys.argv = ['qkv', *{arguments}]\n"
        "from qkv.app.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as ended: assert not ended.code, ended.code"
    )


def of(modules):
    """Which packages of qkv some modules belong to."""
    return {name.split(".")[1] for name in modules if "." in name}


def test_the_package_alone_loads_nothing():
    packages, modules = loaded_by("import qkv")
    assert modules == {"qkv"} and not packages & OTHERS


def test_a_formula_brings_the_array_libraries_and_the_maths():
    packages, modules = loaded_by("from qkv import attend, softmax, causal_mask")
    assert packages & OTHERS == {"numpy", "array_api_compat"}
    assert of(modules) == {"ops", "arguments", "shapes", "errors"}


def test_a_model_is_loaded_without_planner_templates_or_compiler():
    packages, modules = loaded_by("from qkv import load, new_cache, Engine, generate")
    assert not packages & {"jinja2", "tokenizers", "numba", "llvmlite", "rich", "typer"}
    assert not of(modules) & {"planner", "bench", "viz", "app", "kernels"}


def test_a_plan_is_arithmetic_on_a_config_alone():
    packages, modules = loaded_by("import qkv; qkv.plan('llama-3-8b', users=100, context=4096)")
    assert not packages & OTHERS
    assert of(modules) == {"planner", "models", "errors"}
    assert {name for name in modules if name.startswith("qkv.models")} == {
        "qkv.models",
        "qkv.models.config",
        "qkv.models.weights",
    }


@pytest.mark.parametrize(
    "more", [(), ("--memory", "80GiB", "--cache", "int8"), ("--engine", "vllm", "--json")]
)
def test_the_command_plan_adds_the_command_line_to_that(more):
    packages, modules = loaded_by(command("plan", "llama-3-8b", "--users", "100", "--context", "4096", *more))
    assert not packages & OTHERS
    assert of(modules) == {"app", "planner", "models", "arguments", "errors"}
    assert {name for name in modules if name.startswith("qkv.app.cli.")} == {
        *("qkv.app.cli.main", "qkv.app.cli.status", "qkv.app.cli.console"),
        *("qkv.app.cli.plan", "qkv.app.cli.plan_report"),
    }


def test_the_version_is_told_without_any_command():
    packages, modules = loaded_by(command("--version"))
    assert not packages & OTHERS and of(modules) == {"app", "errors"}


# Public names


@pytest.mark.parametrize("package", [qkv, qkv.models])
def test_every_public_name_is_what_the_type_checker_takes_it_for(package):
    tree = ast.parse(Path(package.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    checked = {str(alias.asname): str(node.module) for node in imports for alias in node.names}
    assert checked == package._HOMES
    assert list(package.__all__) == list(package._HOMES)
    for name, home in checked.items():
        found = getattr(package, name)
        assert found is getattr(sys.modules[home], name)
        assert found.__name__ == name


def test_a_name_is_loaded_once_and_listed_before_it_is():
    code = (
        "import qkv; assert {*qkv.__all__, 'compat'} <= {*dir(qkv)} and 'attend' not in vars(qkv)\n"
        "first = qkv.attend; assert vars(qkv)['attend'] is first is qkv.attend"
    )
    loaded_by(code)


def test_a_star_import_brings_the_public_names():
    space = {}
    exec("from qkv import *", space)
    assert set(qkv.__all__) <= set(space)


def test_packages_need_no_import_of_their_own():
    loaded_by("import qkv; qkv.compat.torch_sdpa; qkv.models.Llama; qkv.errors.QKVError; qkv.ops.attention")


@pytest.mark.parametrize("package", [qkv, qkv.models])
def test_any_other_name_is_an_attribute_error(package):
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'atend'"):
        _ = package.atend
