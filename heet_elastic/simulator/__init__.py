"""The simulator: a second caller of the live `decide`, under a virtual clock, with traces, true tables and bounds."""
