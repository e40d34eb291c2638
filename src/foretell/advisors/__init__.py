"""advisors: predictions + facts about devices → what to do about them."""

from foretell.advisors.mig import MigChoice, MigTrial, check_latency_limit, choose_mig, dippm_mig, usable_mib

__all__ = ["MigChoice", "MigTrial", "check_latency_limit", "choose_mig", "dippm_mig", "usable_mib"]
