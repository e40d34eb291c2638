"""Predictors: adapted: what adaptation starts from: the base's answer for a workload, unit by unit."""

from dataclasses import dataclass

import numpy as np

from foretell.features import Units, extract_units
from foretell.features.pooled import DistinctUnits
from foretell.predictors.adapted.units import Values, Work, work_of
from foretell.predictors.protocol import Predictor
from foretell.predictors.roofline import timeline
from foretell.records import Prediction, Workload
from foretell.units import seconds_from_ms, us


@dataclass(frozen=True)
class Base:
    """The base's prediction of a workload, and its units as adaptation sees them."""

    prediction: Prediction
    units: Units
    distinct: DistinctUnits
    unit_us: Values  # of each distinct unit
    work: Work


def base_of(workload: Workload, predictor: Predictor) -> Base | None:
    """What the base says about a workload; None where nothing of it runs on the device."""
    prediction = predictor.predict(workload)
    units = extract_units(workload)
    if not len(units) or prediction.latency_ms is None:
        return None
    distinct = DistinctUnits.of(units)
    unit_us = unit_times_us(workload, predictor, distinct)
    # a base may correct the sum of its units: the units share the correction
    unit_us = unit_us * (us(seconds_from_ms(prediction.latency_ms.value)) / float(unit_us @ distinct.counts))
    return Base(prediction, units, distinct, unit_us, work_of(distinct, unit_us))


def unit_times_us(workload: Workload, predictor: Predictor, distinct: DistinctUnits) -> Values:
    """The time of each distinct unit: as the base predicts it, or as the roofline divides its time."""
    predict_units = getattr(predictor, "unit_times_us", None)
    if predict_units is not None:
        return np.asarray(predict_units(workload, distinct))
    return timeline(workload).latency_ms[distinct.first] * us(seconds_from_ms(1.0))
