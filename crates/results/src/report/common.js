"use strict";
/** Shared by the report and the live page: elements, numbers, panels with curves, and the theme. */
const ccbench = (() => {
  // The Okabe-Ito palette for colour-blind readers.
  const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#b8a800"];
  const DASHES = [[], [8, 4], [2, 3]];
  const DENSE_POINTS = 500;
  const CHART_HEIGHT = 220;

  const make = (tag, text, properties = {}) => {
    const element = Object.assign(document.createElement(tag), properties);
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
  /** Formats a number with a precision suitable for the magnitude of `like`. */
  const digits = (value, like = value) => {
    if (value === null || value === undefined) return "-";
    const size = Math.abs(like);
    return value.toFixed(size >= 1000 || (value === like && Number.isInteger(value)) ? 0 : size >= 100 ? 1 : size >= 1 ? 2 : 4);
  };

  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const bands = (phases) => (chart) => {
    const { ctx, bbox } = chart;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
    phases.forEach((phase, nth) => {
      const from = chart.valToPos(phase.start_us / 1e6, "x", true);
      const to = chart.valToPos(phase.end_us / 1e6, "x", true);
      if (nth % 2 === 0) {
        ctx.fillStyle = style("--band");
        ctx.fillRect(from, bbox.top, to - from, bbox.height);
      }
      ctx.fillStyle = style("--faint");
      ctx.fillText(phase.name, Math.max(from, bbox.left) + 4 * devicePixelRatio, bbox.top + 12 * devicePixelRatio);
    });
    ctx.restore();
  };
  const lineOf = (curve, samples) => ({
    // Dense curves are one device pixel wide: browsers draw such lines six times faster, so zooming stays smooth.
    width: curve.t_s.length > DENSE_POINTS ? 1 / devicePixelRatio : 1.5,
    spanGaps: true,
    points: { show: samples < 200, fill: style("--back") },
    value: (_, value) => digits(value),
  });
  const describeCurves = (panel) => panel.curves.map((curve) => {
    const [low, high] = curve.value.reduce(([a, b], v) => [Math.min(a, v), Math.max(b, v)], [Infinity, -Infinity]);
    return `${curve.name} from ${digits(low)} to ${digits(high)}`;
  }).join("; ");
  /**
   * Draws a panel {title, unit, samples, curves: [{name, t_s, value, look}], about} at the end of `place`. `about` describes the curves.
   * `look` has the numbers of a curve's colour and of its dashes. `whole` is the time range without zoom.
   */
  const drawPanel = (panel, phases, whole, place) => {
    const figure = make("div");
    figure.setAttribute("role", "group");
    figure.setAttribute("aria-label", `${panel.title} in ${panel.unit}: ${panel.about ?? describeCurves(panel)}`);
    const samples = panel.samples === undefined ? "" : plural(panel.samples, "sample");
    place.append(make("h3", `${panel.title}, ${panel.unit}`, { title: samples }), figure);
    const [ink, line] = [style("--ink"), style("--line")];
    const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } };
    const data = uPlot.join(panel.curves.map((curve) => [curve.t_s, curve.value]));
    const series = panel.curves.map((curve, nth) => {
      const [colour, dash] = curve.look ?? [nth, Math.floor(nth / COLOURS.length)];
      return { ...lineOf(curve, data[0].length), label: curve.name, stroke: COLOURS[colour % COLOURS.length], dash: DASHES[dash % DASHES.length] };
    });
    const chart = new uPlot({
      width: place.clientWidth,
      height: CHART_HEIGHT,
      scales: { x: { time: false, range: ({ data: [times] }, low, high) => (times.length < 2 || (low === times[0] && high === times.at(-1)) ? whole : [low, high]) },
        y: { range: (_, low, high) => [Math.min(0, (low ?? 0) * 1.05), Math.max(0, (high ?? 1) * 1.12) || (low < 0 ? 0 : 1)] } },
      axes: [{ ...axis, values: (_, ticks) => ticks.map((t) => `${t} s`) }, { ...axis, size: 64 }],
      cursor: { sync: { key: "trial" } },
      series: [{ label: "time", value: (_, t) => (t === null ? "-" : `${t.toFixed(3)} s`) }, ...series],
      hooks: { drawClear: [bands(phases)] },
    }, data, figure);
    // uPlot's legend is a table only for layout. Its entries are buttons that say whether their curve is shown.
    figure.querySelector(".u-legend").setAttribute("role", "presentation");
    const entries = [...figure.querySelectorAll(".u-legend .u-series th")].slice(1);
    const setPressed = () => entries.forEach((entry) => entry.setAttribute("aria-pressed", String(!entry.parentElement.classList.contains("u-off"))));
    for (const entry of entries) {
      Object.assign(entry, { tabIndex: 0, role: "button" });
      entry.addEventListener("click", setPressed);
      entry.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        entry.click();
      });
    }
    setPressed();
    return chart;
  };

  /** Keeps the charts that `charts()` returns as wide as `place`. */
  const fitCharts = (place, charts) => new ResizeObserver(() => {
    const width = place.clientWidth;
    for (const chart of charts()) if (chart.width !== width) chart.setSize({ width, height: CHART_HEIGHT });
  }).observe(place);
  /** Sets the theme: follows the system or the button `#theme`, whichever changed last. Calls `draw` at once and after changes. */
  const startTheme = (draw) => {
    const button = document.getElementById("theme");
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const apply = (isDark) => {
      document.documentElement.dataset.theme = isDark ? "dark" : "light";
      button.textContent = isDark ? "Light" : "Dark";
      draw();
    };
    button.addEventListener("click", () => apply(document.documentElement.dataset.theme !== "dark"));
    dark.addEventListener("change", () => apply(dark.matches));
    apply(dark.matches);
  };

  return { make, plural, digits, drawPanel, fitCharts, startTheme };
})();
