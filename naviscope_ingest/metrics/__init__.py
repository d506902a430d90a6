"""Metrics for Prometheus, with the extra `metrics`.

What there is stands in one table, `METRICS`, from which follow the reference page and what is exposed. Names and labels
are part of the interface: dashboards and alerts rest on them.
"""

from naviscope_ingest.metrics.prometheus import PrometheusMetrics
from naviscope_ingest.metrics.table import METRICS, Metric, metrics_page

__all__ = ["METRICS", "Metric", "PrometheusMetrics", "metrics_page"]
