"""foretell: predicts how a deep-learning model will run before anyone runs it."""

import importlib
from typing import TYPE_CHECKING, Any

from foretell.devices import Device
from foretell.errors import ForetellError
from foretell.graph import Graph
from foretell.records import Estimate, Measurement, Prediction, Target, Workload
from foretell.workflows import devices, load_graph, predict

if TYPE_CHECKING:
    from foretell.advisors.improvement import Improvement
    from foretell.advisors.placement import Advice
    from foretell.workflows.adapting.adapt import Adaptation, adapt
    from foretell.workflows.advise import advise
    from foretell.workflows.compare import ModelComparison, compare
    from foretell.workflows.improving.improve import improve
    from foretell.workflows.inspect import Inspection, inspect
    from foretell.workflows.llm import LlmPrediction, llm
    from foretell.workflows.many.predict_many import predict_many
    from foretell.workflows.many.predict_plan import predict_plan
    from foretell.workflows.measure.collect import collect
    from foretell.workflows.measure.profile import profile
    from foretell.workflows.memory.fit import Fit, fit
    from foretell.workflows.serving.advise_llm import LlmAdvice, advise_llm
    from foretell.workflows.serving.simulate import SimulatedServing, simulate
    from foretell.workflows.sharing.pack import Packing, pack
    from foretell.workflows.sharing.share import Sharing, share
    from foretell.workflows.sweep import Sweep, sweep

__all__ = [
    "Adaptation",
    "Advice",
    "Device",
    "Estimate",
    "Fit",
    "ForetellError",
    "Graph",
    "Improvement",
    "Inspection",
    "LlmAdvice",
    "LlmPrediction",
    "Measurement",
    "ModelComparison",
    "Packing",
    "Prediction",
    "Sharing",
    "SimulatedServing",
    "Sweep",
    "Target",
    "Workload",
    "adapt",
    "advise",
    "advise_llm",
    "collect",
    "compare",
    "devices",
    "fit",
    "improve",
    "inspect",
    "llm",
    "load_graph",
    "pack",
    "predict",
    "predict_many",
    "predict_plan",
    "profile",
    "share",
    "simulate",
    "sweep",
]

# names that are used less often are imported on first access, so that a prediction starts quickly
_LATER = {
    "Adaptation": "foretell.workflows.adapting.adapt",
    "Advice": "foretell.advisors.placement",
    "Fit": "foretell.workflows.memory.fit",
    "Improvement": "foretell.advisors.improvement",
    "Inspection": "foretell.workflows.inspect",
    "LlmAdvice": "foretell.workflows.serving.advise_llm",
    "LlmPrediction": "foretell.workflows.llm",
    "ModelComparison": "foretell.workflows.compare",
    "Packing": "foretell.workflows.sharing.pack",
    "Sharing": "foretell.workflows.sharing.share",
    "SimulatedServing": "foretell.workflows.serving.simulate",
    "Sweep": "foretell.workflows.sweep",
    "adapt": "foretell.workflows.adapting.adapt",
    "advise": "foretell.workflows.advise",
    "advise_llm": "foretell.workflows.serving.advise_llm",
    "collect": "foretell.workflows.measure.collect",
    "compare": "foretell.workflows.compare",
    "fit": "foretell.workflows.memory.fit",
    "improve": "foretell.workflows.improving.improve",
    "inspect": "foretell.workflows.inspect",
    "llm": "foretell.workflows.llm",
    "pack": "foretell.workflows.sharing.pack",
    "predict_many": "foretell.workflows.many.predict_many",
    "predict_plan": "foretell.workflows.many.predict_plan",
    "profile": "foretell.workflows.measure.profile",
    "share": "foretell.workflows.sharing.share",
    "simulate": "foretell.workflows.serving.simulate",
    "sweep": "foretell.workflows.sweep",
}


def __getattr__(name: str) -> Any:
    """A name of `__all__` that nothing has imported yet."""
    if name in _LATER:
        value = getattr(importlib.import_module(_LATER[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, and nothing of the inside."""
    return list(__all__)
