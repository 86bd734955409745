"""Fixtures that several files share; exports take seconds, so each is made once."""

from __future__ import annotations

import os

# Workers of pytest-xdist share the cores; this must be said before torch is imported.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from random_models import RANDOM_MODELS, random_proxies
from rewritten_decoders import LAYERS, Exported

from p2p_export.graphs import export_decoder
from p2p_export.models import family_of


@pytest.fixture(scope="session", params=list(RANDOM_MODELS))
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    model = RANDOM_MODELS[request.param](LAYERS)
    family = family_of(model.config)
    spec = family.decoder_spec(model.config)
    folder = tmp_path_factory.mktemp(request.param)
    export_decoder(model, family, spec, folder)
    return Exported(model, spec, random_proxies(spec), folder)


@pytest.fixture(params=["fused", "elided"])
def lowering(request: pytest.FixtureRequest) -> str:
    return str(request.param)
