"""What a figure of matplotlib shows, as data: read from the artists that were drawn. docs/code.md has the members of each kind of chart."""
import datetime
import math
import re

import numpy as np
from matplotlib import dates
from matplotlib.collections import PathCollection
from matplotlib.container import BarContainer
from matplotlib.patches import PathPatch, Wedge

POINTS_MAX = 5000  # of one element; longer ones are thinned evenly
ELEMENTS_MAX = 500
UNIT = re.compile(r"\s*[(\[]([^()\[\]]+)[)\]]\s*$")


def number(value):
    """A finite float, or None."""
    value = float(value)
    return value if math.isfinite(value) else None


def coordinate(value):
    if isinstance(value, (datetime.date, datetime.datetime)):
        return value.isoformat()
    if isinstance(value, np.datetime64):
        return str(value.astype("datetime64[s]"))
    if isinstance(value, str):
        return value
    if type(value).__name__ == "Period":
        return str(value)
    return number(value)


# --- axes ----------------------------------------------------------------------------------------------------------------------------

def is_date_axis(axis):
    return isinstance(axis.get_major_formatter(), (dates.DateFormatter, dates.AutoDateFormatter, dates.ConciseDateFormatter))


def is_category_axis(axis):
    return type(axis.get_major_formatter()).__name__ == "StrCategoryFormatter"


def axis_ticks(axis):
    """Places and labels."""
    places = [float(p) for p in axis.get_ticklocs()]
    labels = [t.get_text() for t in axis.get_ticklabels()]
    return places, labels


def axis_scale(axis, scale):
    if is_date_axis(axis):
        return "datetime"
    if scale != "linear":
        return scale
    places, labels = axis_ticks(axis)
    named = is_category_axis(axis) or (
        places and places == list(range(len(places))) and all(label and label != str(i) for i, label in enumerate(labels))
        and not all(is_number(label) for label in labels))
    return "categorical" if named else "linear"


def is_number(text):
    try:
        float(text.replace("\u2212", "-"))
        return True
    except ValueError:
        return False


def axis_name(text):
    """The label, and the unit at its end: "speed (km/h)", "mass [kg]"."""
    found = UNIT.search(text or "")
    return text or None, found.group(1) if found else None


def axes_names(ax, swapped=False):
    x, y = axis_name(ax.get_xlabel()), axis_name(ax.get_ylabel())
    if swapped:
        x, y = y, x
    return {"x_label": x[0], "x_unit": x[1], "y_label": y[0], "y_unit": y[1]}


def axes_ticks(ax):
    made = {}
    for name, axis, scale in (("x", ax.xaxis, ax.get_xscale()), ("y", ax.yaxis, ax.get_yscale())):
        places, labels = axis_ticks(axis)
        made[f"{name}_ticks"] = [dates.num2date(p).isoformat() for p in places] if is_date_axis(axis) else places
        made[f"{name}_tick_labels"] = labels
        made[f"{name}_scale"] = axis_scale(axis, scale)
    return made


# --- points --------------------------------------------------------------------------------------------------------------------------

def thin(pairs):
    pairs = list(pairs)
    step = -(-len(pairs) // POINTS_MAX)
    return pairs[::step] if step > 1 else pairs


def points(pairs):
    """Pairs without those that are not drawn: a gap of a line, a masked value."""
    found = [(coordinate(x), coordinate(y)) for x, y in thin(pairs) if x is not np.ma.masked and y is not np.ma.masked]
    return [[x, y] for x, y in found if x is not None and y is not None]


def auto_label(label, prefix, word):
    return f"{word} {label[len(prefix):]}" if label.startswith(prefix) else label


def is_straight(ax, line):
    """A line over the whole axes, of axhline() and axvline(): not data."""
    return line.get_transform() not in (ax.transData,)


def line_elements(ax, lines):
    return [{"label": auto_label(str(line.get_label()), "_child", "Line"), "points": points(zip(line.get_xdata(), line.get_ydata()))}
            for line in lines[:ELEMENTS_MAX]]


def scatter_elements(ax, collections):
    made = []
    for c in collections[:ELEMENTS_MAX]:
        pairs = np.ma.asarray(c.get_offsets())
        if is_date_axis(ax.xaxis):
            pairs = [(dates.num2date(x).isoformat(), y) for x, y in thin(pairs)]
        made.append({"label": str(c.get_label()), "points": points(pairs)})
    return made


# --- bars and wedges -----------------------------------------------------------------------------------------------------------------

def bar_label(axis, centre, places, labels):
    """The label of the tick that a bar stands at, or beside as one of a group; otherwise where it stands."""
    gaps = [b - a for a, b in zip(places, places[1:])]
    near = min(range(len(places)), key=lambda i: abs(places[i] - centre), default=None)
    named = near is not None and labels[near] and not is_number(labels[near])
    if named and abs(places[near] - centre) <= (min(gaps) / 2 if gaps else 0.5):
        return labels[near]
    return dates.num2date(centre).isoformat() if is_date_axis(axis) else f"{centre:g}"


def bar_elements(ax, bars):
    flat = bars[0].orientation == "horizontal"
    axis = ax.yaxis if flat else ax.xaxis
    places, labels = axis_ticks(axis)
    made = []
    for i, bar in enumerate(bars):
        group = auto_label(str(bar.get_label()), "_container", "Group")
        for r in bar.patches:
            centre = r.get_y() + r.get_height() / 2 if flat else r.get_x() + r.get_width() / 2
            value = number(r.get_width() if flat else r.get_height())
            if value is not None and len(made) < POINTS_MAX:
                made.append({"label": bar_label(axis, centre, places, labels), "group": group, "value": value})
    return made, flat


def pie_elements(wedges):
    return [{"label": str(w.get_label()), "angle": round(abs(w.theta2 - w.theta1), 4), "radius": float(w.r)} for w in wedges[:ELEMENTS_MAX]]


# --- boxes ---------------------------------------------------------------------------------------------------------------------------

def rectangle(path):
    """(x0, x1, y0, y1) of a closed rectangle, the body of a box; a notched one has more corners. Otherwise None."""
    corners = np.asarray(path, dtype=float)
    if len(corners) < 5 or len(corners) > 12 or not np.all(np.isfinite(corners)):
        return None
    x, y = corners[:, 0], corners[:, 1]
    if len(corners) == 5 and (len(set(x.round(9))) > 2 or len(set(y.round(9))) > 2):
        return None
    if not np.allclose(corners[0], corners[4] if len(corners) == 5 else corners[-1]) and not np.allclose(corners[0], corners[-2]):
        return None
    return x.min(), x.max(), y.min(), y.max()


def box_bodies(ax):
    shapes = [(p, p.get_path().vertices) for p in ax.patches if isinstance(p, PathPatch)]
    shapes += [(line, line.get_xydata()) for line in ax.lines if len(line.get_xdata()) >= 5 and line.get_linestyle() != "None"]
    return [r for _, path in shapes if (r := rectangle(path))]


def box_lines(ax, body, flat):
    """What stands at one box, as (places across, values along): whiskers, lines across it, dots."""
    x0, x1 = (body[2], body[3]) if flat else (body[0], body[1])
    whiskers, across, dots = [], [], []
    for line in ax.lines:
        at, value = (line.get_ydata(), line.get_xdata()) if flat else (line.get_xdata(), line.get_ydata())
        at, value = np.asarray(at, dtype=float), np.asarray(value, dtype=float)
        if not len(at) or at.min() < x0 - 1e-9 or at.max() > x1 + 1e-9:
            continue
        if line.get_linestyle() == "None":
            dots.append(value)
        elif len(at) == 2 and at[0] != at[1] and np.isclose(value[0], value[1]):
            across.append(float(value[0]))
        elif len(at) == 2 and np.allclose(at, (x0 + x1) / 2):
            whiskers.append((float(value.min()), float(value.max())))
    return whiskers, across, dots


def box_read(ax, body, flat):
    """The numbers of one box. `flat`: values run along x. The whiskers begin at the quartiles, also where notches reach beyond them."""
    low, high = (body[0], body[1]) if flat else (body[2], body[3])
    whiskers, across, dots = box_lines(ax, body, flat)
    least, most = low, high
    if len(whiskers) == 2:
        (least, low), (high, most) = sorted(whiskers)
    inside = [v for v in across if low - 1e-9 <= v <= high + 1e-9]
    medians = [v for v in inside if v not in (least, most)] or inside
    if not medians:
        return None
    outliers = [float(v) for v in dots[-1] if v < least or v > most] if dots else []  # the last dots: means come before
    return {"min": least, "first_quartile": low, "median": medians[0], "third_quartile": high, "max": most,
            "outliers": outliers[:POINTS_MAX]}


def box_elements(ax):
    """Boxes in their order, and whether they lie; ([], False) if these axes have none."""
    bodies = box_bodies(ax)[:ELEMENTS_MAX]
    if not bodies:
        return [], False
    for flat in (False, True):
        made = [box_read(ax, b, flat) for b in bodies]
        if all(made) and (len(bodies) < 2 or len({round(b[2 if flat else 0], 6) for b in bodies}) == len(bodies)):
            places, labels = axis_ticks(ax.yaxis if flat else ax.xaxis)
            for b, m in zip(bodies, made):
                m.update({k: float(v) for k, v in m.items() if k != "outliers"})
                centre = (b[2] + b[3]) / 2 if flat else (b[0] + b[1]) / 2
                near = min(range(len(places)), key=lambda i: abs(places[i] - centre), default=None)
                m["label"] = labels[near] if near is not None and labels[near] else f"{centre:g}"
            return made, flat
    return [], False


# --- charts --------------------------------------------------------------------------------------------------------------------------

def axes_chart(ax):
    title = ax.get_title() or None
    wedges = [p for p in ax.patches if isinstance(p, Wedge)]
    bars = [c for c in ax.containers if isinstance(c, BarContainer) and len(c.patches)]
    lines = [line for line in ax.lines if not is_straight(ax, line) and len(line.get_xdata())]
    dots = [c for c in ax.collections if isinstance(c, PathCollection) and len(c.get_offsets())]
    if wedges:
        return {"type": "pie", "title": title, "elements": pie_elements(wedges)}
    if bars:
        made, flat = bar_elements(ax, bars)
        return {"type": "bar", "title": title, **axes_names(ax, flat), "elements": made}
    boxes, flat = box_elements(ax)
    if boxes:
        return {"type": "box_and_whisker", "title": title, **axes_names(ax, flat), "elements": boxes}
    if dots:
        return {"type": "scatter", "title": title, **axes_names(ax), **axes_ticks(ax),
                "elements": scatter_elements(ax, dots) + line_elements(ax, lines)}
    if lines:
        return {"type": "line", "title": title, **axes_names(ax), **axes_ticks(ax), "elements": line_elements(ax, lines)}
    return {"type": "unknown", "title": title, "elements": []}


def figure_chart(figure):
    axes = [ax for ax in figure.axes if ax.has_data()]
    if not axes:
        return None
    figure.draw_without_rendering()  # labels of ticks are made when they are drawn
    if len(axes) == 1:
        return axes_chart(axes[0])
    return {"type": "superchart", "title": figure.get_suptitle(), "elements": [axes_chart(ax) for ax in axes]}
