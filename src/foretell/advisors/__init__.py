"""Advisors: from predictions, prices and carbon to advice."""

from foretell.advisors.carbon import CarbonFacts, Fact, load_carbon
from foretell.advisors.mig import MigChoice, MigTrial, check_latency_limit, choose_mig, dippm_mig, usable_mib
from foretell.advisors.prices import Price, load_prices, select_prices

__all__ = [
    "CarbonFacts",
    "Fact",
    "MigChoice",
    "MigTrial",
    "Price",
    "check_latency_limit",
    "choose_mig",
    "dippm_mig",
    "load_carbon",
    "load_prices",
    "select_prices",
    "usable_mib",
]
