"""What every route needs, made once by `create_app`."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request

from engine import SamplingParams
from server.config import AppConfig
from server.loader import EngineLoader
from server.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Services:
    """config: the settings in force; loader: where the engine comes from; defaults: [sampling];
    metrics: what is counted.
    """

    config: AppConfig
    loader: EngineLoader
    defaults: SamplingParams
    metrics: Metrics

    @classmethod
    def of(cls, request: Request) -> Services:
        """Those of the application that serves `request`."""
        services: Services = request.app.state.services
        return services
