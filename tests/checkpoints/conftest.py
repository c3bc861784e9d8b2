"""What holds for all tests of checkpoints."""

import pytest

from mmlape.checkpoints.formats import timm_models


@pytest.fixture(autouse=True)
def _no_questions_to_the_hub(monkeypatch):
    """No test asks the Hugging Face Hub whether it is there."""
    monkeypatch.setattr(timm_models, 'get_hf_file_metadata', lambda address, **options: None)
