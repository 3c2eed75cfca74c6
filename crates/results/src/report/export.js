"use strict";
/** Figures as files: SVG, PNG of the same picture, and the data as CSV. The page itself creates them on request. */
Object.assign(ccbench, (() => {
  const { make } = ccbench;
  const PNG_WIDTH = 2000;
  /** Position of the diagram in the picture. The colours are for white paper. */
  const [WIDTH, LEFT, TOP, RIGHT, BOTTOM, LEGEND] = [640, 64, 26, 626, 246, 282];
  const [INK, FAINT, GRID, BAND] = ["#222222", "#5a5a5a", "#e2e2e2", "#f0f2f5"];

  const escaped = (text) => String(text).replace(/[&<>"]/g, (mark) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[mark]);
  const short = (number) => Number(number.toFixed(2));
  /** Returns about `parts` round numbers between two numbers. */
  const ticks = (low, high, parts) => {
    const rough = (high - low) / parts;
    if (!(rough > 0)) return [low];
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * ([1, 2, 2.5, 5].find((factor) => factor * power >= rough * 0.999999) ?? 10);
    const first = Math.ceil(low / step - 1e-9);
    const count = Math.floor(high / step + 1e-9) - first + 1;
    return Array.from({ length: count }, (_, nth) => Number(((first + nth) * step).toPrecision(12)));
  };

  /** Returns the visible curves of a chart, with their samples in the visible time range. */
  const shownCurves = (chart) => {
    const { min, max } = chart.scales.x;
    const [times, ...values] = chart.data;
    const known = (of) => times.flatMap((t, at) => (t < min || t > max || of[at] === null || of[at] === undefined ? [] : [[t, of[at]]]));
    return chart.series.slice(1).map((series, nth) => ({ series, nth: nth + 1, samples: known(values[nth]) }))
      .filter(({ series }) => series.show)
      .map(({ series, nth, samples }) => ({
        name: series.label,
        samples,
        colour: typeof series.stroke === "function" ? series.stroke(chart, nth) : series.stroke,
        dash: (series.dash ?? []).join(" "),
      }));
  };

  /** Returns a chart as SVG in its current zoom, with phases as bands and without hidden curves. */
  const chartSvg = (chart, { title, unit }, phases) => {
    const [{ x, y }, curves] = [chart.scales, shownCurves(chart)];
    const across = (t) => short(LEFT + ((t - x.min) / (x.max - x.min)) * (RIGHT - LEFT));
    const up = (value) => short(BOTTOM - ((value - y.min) / (y.max - y.min)) * (BOTTOM - TOP));
    const text = (left, top, what, more = "") => `<text x="${left}" y="${top}" fill="${INK}" ${more}>${escaped(what)}</text>`;
    const path = (d, colour, more) => `<path d="${d}" fill="none" stroke="${colour}" ${more}/>`;
    const look = ({ dash }) => `stroke-width="1.2" stroke-linejoin="round"${dash ? ` stroke-dasharray="${dash}"` : ""}`;
    const parts = [text(LEFT, 16, unit ? `${title} (${unit})` : title, 'font-size="13"')];
    phases.forEach((phase, nth) => {
      const [from, to] = [phase.start_us, phase.end_us].map((us) => Math.min(Math.max(us / 1e6, x.min), x.max));
      if (from >= to) return;
      const [left, right] = [from, to].map(across);
      if (nth % 2 === 0) parts.push(`<rect x="${left}" y="${TOP}" width="${short(right - left)}" height="${BOTTOM - TOP}" fill="${BAND}"/>`);
      parts.push(`<text x="${left + 3}" y="${TOP + 11}" fill="${FAINT}" font-size="10">${escaped(phase.name)}</text>`);
    });
    for (const value of ticks(y.min, y.max, 5)) {
      parts.push(path(`M${LEFT},${up(value)}H${RIGHT}`, GRID, ""), text(LEFT - 6, up(value) + 4, value, 'text-anchor="end"'));
    }
    for (const t of ticks(x.min, x.max, 8)) {
      parts.push(path(`M${across(t)},${BOTTOM}v4`, INK, ""), text(across(t), BOTTOM + 16, t, 'text-anchor="middle"'));
    }
    parts.push(text((LEFT + RIGHT) / 2, BOTTOM + 29, "time (s)", 'text-anchor="middle"'), '<g clip-path="url(#plot)">');
    for (const curve of curves) {
      const points = curve.samples.map(([t, value]) => `${across(t)},${up(value)}`);
      // A path of one point is invisible.
      if (points.length === 1) points.push(`${across(curve.samples[0][0] + (x.max - x.min) / 200)},${up(curve.samples[0][1])}`);
      if (points.length) parts.push(path(`M${points.join("L")}`, curve.colour, look(curve)));
    }
    parts.push("</g>", path(`M${LEFT},${TOP}V${BOTTOM}H${RIGHT}`, INK, ""));
    let [left, top] = [LEFT, LEGEND + 8];
    for (const curve of curves) {
      const width = 40 + 6 * curve.name.length;
      if (left > LEFT && left + width > WIDTH) [left, top] = [LEFT, top + 15];
      parts.push(path(`M${left},${top - 4}h20`, curve.colour, look(curve)), text(left + 25, top, curve.name));
      left += width;
    }
    const height = top + 10;
    return `<svg xmlns="http://www.w3.org/2000/svg" width="${WIDTH}" height="${height}" viewBox="0 0 ${WIDTH} ${height}" ` +
      `font-family="Arimo, Arial, 'Liberation Sans', Helvetica, sans-serif" font-size="11">\n<title>${escaped(title)}</title>\n` +
      `<clipPath id="plot"><rect x="${LEFT}" y="${TOP}" width="${RIGHT - LEFT}" height="${BOTTOM - TOP}"/></clipPath>\n` +
      `<rect width="${WIDTH}" height="${height}" fill="#ffffff"/>\n${parts.join("\n")}\n</svg>\n`;
  };

  /** Returns the samples that a chart shows. They are downsampled; the tables have all samples. */
  const chartCsv = (chart, { title, unit }) => {
    const cell = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
    const lines = shownCurves(chart).flatMap(({ name, samples }) =>
      samples.map(([t, value]) => [cell(name), t, cell(title), cell(unit), value].join(",")));
    return ["curve,t_s,quantity,unit,value", ...lines, ""].join("\n");
  };

  const png = (svg) => new Promise((resolve, reject) => {
    const [, width, height] = /viewBox="0 0 ([\d.]+) ([\d.]+)"/.exec(svg).map(Number);
    const image = new Image();
    image.addEventListener("error", () => reject(new Error("the browser cannot draw the image")));
    image.addEventListener("load", () => {
      const canvas = make("canvas", undefined, { width: PNG_WIDTH, height: Math.round((PNG_WIDTH * height) / width) });
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("the image is too large"))), "image/png");
    });
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
  });
  const save = (name, blob) => {
    const link = make("a", undefined, { href: URL.createObjectURL(blob), download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  };

  /** Returns buttons that save a figure `what`, and a status that shows the result. `svg()` and `csv()` return text; `stem` is a file name without extension. */
  const saveButtons = (what, stem, svg, csv) => {
    const bar = make("p", "Save as ", { className: "save" });
    const status = make("span");
    status.setAttribute("role", "status");
    const formats = {
      SVG: async () => new Blob([svg()], { type: "image/svg+xml" }),
      PNG: () => png(svg()),
      CSV: async () => new Blob([csv()], { type: "text/csv" }),
    };
    for (const [format, blob] of Object.entries(formats)) {
      const button = make("button", format, { type: "button" });
      button.setAttribute("aria-label", `Save ${what} as ${format}`);
      button.addEventListener("click", async () => {
        const name = `${stem.replace(/[^A-Za-z0-9._=-]+/g, "_")}.${format.toLowerCase()}`;
        try {
          save(name, await blob());
          status.textContent = name;
        } catch (error) {
          status.textContent = `cannot save ${name}: ${error.message}`;
        }
      });
      bar.append(button, " ");
    }
    bar.append(status);
    return bar;
  };
  /** Adds the buttons of a chart to `place`. */
  const addSaveButtons = (chart, panel, phases, stem, place) => place.append(
    saveButtons(panel.title, `${stem}-${panel.title}`, () => chartSvg(chart, panel, phases), () => chartCsv(chart, panel)));

  return { saveButtons, addSaveButtons };
})());
