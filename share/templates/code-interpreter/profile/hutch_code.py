"""An extension of IPython: results carry their data, beside text and picture. Figures of matplotlib get `e2b/chart`, DataFrames of pandas
`e2b/data`, lists and dictionaries `application/json`. Imports neither library: formatters are found by the names of their types."""
import datetime
import math
import sys

from IPython.core.formatters import BaseFormatter, catch_format_error
from traitlets import ObjectName, Unicode

CELLS_MAX = 200_000  # of a DataFrame: larger ones have no `data`
ITEMS_MAX = 10_000  # of a list or dictionary, with all inside it
DEPTH_MAX = 32


class DataFormatter(BaseFormatter):
    format_type = Unicode("e2b/data")
    print_method = ObjectName("_repr_e2b_data_")
    _return_type = dict


class ChartFormatter(BaseFormatter):
    format_type = Unicode("e2b/chart")
    print_method = ObjectName("_repr_e2b_chart_")
    _return_type = dict

    @catch_format_error
    def __call__(self, value):
        """matplotlib's inline backend unregisters its Figure from every formatter, so figures are recognised here."""
        if any((t.__module__, t.__name__) == ("matplotlib.figure", "Figure") for t in type(value).__mro__):
            return figure_chart(value)
        return super().__call__(value)


class JsonFormatter(BaseFormatter):
    format_type = Unicode("application/json")
    print_method = ObjectName("_repr_json_")
    _return_type = (list, dict)

    @catch_format_error
    def __call__(self, value):
        made = super().__call__(value)
        return (made, {"expanded": True}) if made is not None and type(value) in (list, dict) else made


class TooLarge(Exception):
    pass


def plain(value):
    """A value of a DataFrame as JSON has it: times in ISO 8601, what is no number as null."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if type(value).__name__ == "NaTType":
        return "NaT"
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if type(value).__module__ == "numpy" and hasattr(value, "item"):
        return plain(value.item())
    if isinstance(value, int):
        return value if abs(value) < 2**63 else float(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value)


def frame_data(frame):
    if frame.shape[0] * frame.shape[1] > CELLS_MAX:
        return None
    return {str(name): [plain(v) for v in frame.iloc[:, i]] for i, name in enumerate(frame.columns)}


def json_value(value, left, depth=0):
    left[0] -= 1
    if left[0] < 0 or depth > DEPTH_MAX:
        raise TooLarge
    if isinstance(value, dict):
        return {str(k): json_value(v, left, depth + 1) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(v, left, depth + 1) for v in value]
    return plain(value)


def json_data(value):
    try:
        return json_value(value, [ITEMS_MAX])
    except TooLarge:
        return None


def figure_chart(figure):
    """None for an empty figure, and for one that this cannot read: the picture is there in any case."""
    import hutch_charts
    try:
        return hutch_charts.figure_chart(figure)
    except Exception as e:
        print(f"hutch_code: no chart data of this figure: {type(e).__name__}: {e}", file=sys.__stderr__)
        return None


def load_ipython_extension(shell):
    formatters = shell.display_formatter.formatters
    data, chart, text = (f(parent=shell.display_formatter) for f in (DataFormatter, ChartFormatter, JsonFormatter))
    for module in ("pandas", "pandas.core.frame"):  # pandas 3, and before
        data.for_type_by_name(module, "DataFrame", frame_data)
    text.for_type(list, json_data)
    text.for_type(dict, json_data)
    for f in (data, chart, text):
        formatters[f.format_type] = f
