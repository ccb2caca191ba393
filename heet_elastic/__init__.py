"""heet-elastic: elastic training on mixed GPUs as a plug-in for plain torchrun.

Training scripts need no change. What one may tell heet: `progress(done, total)` and `report(samples=...)`.
"""

from heet_elastic.reporting import progress, report

__all__ = ["__version__", "progress", "report"]
__version__ = "0.1.0"
