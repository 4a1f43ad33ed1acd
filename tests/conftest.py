import os
from pathlib import Path

import pytest
from hypothesis import settings

# A slow moment of a shared machine is no fault of the code.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


@pytest.fixture(scope="session")
def stories260k() -> Path:
    """The folder of a real Llama-style model, if it is there."""
    beside_repository = Path(__file__).parents[2] / "shared" / "models" / "stories260k"
    folder = Path(os.environ.get("QKV_STORIES260K", beside_repository))
    if not (folder / "tokenizer.json").is_file():
        pytest.skip(f"no model in {folder}; set QKV_STORIES260K to its folder")
    return folder
