"""The facts room: what instances cost and what a kilowatt-hour carries, with dates and sources."""

from foretell.facts.carbon import CarbonFacts, Fact, load_carbon
from foretell.facts.prices import Price, load_prices, select_prices

__all__ = ["CarbonFacts", "Fact", "Price", "load_carbon", "load_prices", "select_prices"]
