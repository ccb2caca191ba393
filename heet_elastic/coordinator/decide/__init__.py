"""The deciding part of the coordinator. Pure: no clock, chance, network or process; the loop around it is `daemon`."""

from heet_elastic.coordinator.decide.decision import decide

__all__ = ["decide"]
