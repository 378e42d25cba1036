// Curves over global steps, drawn by uPlot (a global of uplot.min.js).
/* global uPlot */

const HEIGHT = 220;
const MOST_POINTS = 4000;
/** Between two lines of the axis of steps: there is no half step. */
const WHOLE_STEPS = Array.from({ length: 10 }, (_, power) => [1, 2, 5].map((digit) => digit * 10 ** power)).flat();
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** series: [[metric, label, colour variable]] */
export class Chart {
  constructor(element, series) {
    this.element = element;
    this.series = series;
    this.plot = null;
    this.isZoomed = false;
    this.clear();
    new ResizeObserver(() => this.fit()).observe(element);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.make());
  }

  clear() {
    this.points = this.series.map(() => new Map());
  }

  /** Parameters of a request for what is not here yet. */
  wanted() {
    return this.series.map(([metric], at) => [metric, Math.max(-1, ...this.points[at].keys())]);
  }

  add(curves) {
    this.series.forEach(([metric], at) => {
      const { epochs, values } = curves[metric];
      const points = this.points[at];
      epochs.forEach((epoch, index) => points.set(epoch, values[index]));
      if (points.size > MOST_POINTS) this.points[at] = new Map([...points].filter((_, index) => index % 2 === 1));
    });
    this.draw();
  }

  data() {
    const tables = this.points.map((points) => {
      const ordered = [...points].sort((a, b) => a[0] - b[0]);
      return [ordered.map(([epoch]) => epoch), ordered.map(([, value]) => value)];
    });
    return tables.length > 1 ? uPlot.join(tables) : tables[0];
  }

  draw() {
    if (this.plot === null) this.make();
    else {
      this.plot.setData(this.data(), !this.isZoomed);
      if (this.isZoomed) this.plot.redraw();
      this.tellLast();
    }
  }

  /** While nobody points at the curve, its legend tells of the newest step; the plot clears it when it has drawn. */
  tellLast() {
    setTimeout(() => {
      const steps = this.plot.data[0].length;
      if (steps > 0 && !(this.plot.cursor.left >= 0)) this.plot.setLegend({ idx: steps - 1 });
    });
  }

  fit() {
    if (this.plot !== null && this.element.clientWidth) {
      this.plot.setSize({ width: this.element.clientWidth, height: HEIGHT });
      this.tellLast();
    }
  }

  make() {
    if (this.plot !== null) this.plot.destroy();
    this.isZoomed = false;
    const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 } };
    const short = (value) => (value === null || value === undefined ? "–" : Number(value.toPrecision(4)).toString());
    const options = {
      width: this.element.clientWidth || 300,
      height: HEIGHT,
      scales: { x: { time: false } },
      axes: [{ ...axis, incrs: WHOLE_STEPS }, { ...axis, size: 64, values: (_, splits) => splits.map(short) }],
      cursor: { drag: { x: true, y: false } },
      series: [
        { label: "step", value: (_, step) => (step === null || step === undefined ? "–" : `${step}`) },
        ...this.series.map(([, label, name], at) => ({
          label,
          stroke: colour(name),
          width: 2,
          spanGaps: true,
          points: { show: this.points[at].size < 60 },
          value: (_, value) => short(value),
        })),
      ],
      hooks: { setSelect: [(plot) => { this.isZoomed = plot.select.width > 0; }] },
    };
    this.plot = new uPlot(options, this.data(), this.element);
    this.plot.over.addEventListener("mouseleave", () => this.tellLast());
    this.tellLast();
    this.plot.over.addEventListener("dblclick", () => { this.isZoomed = false; });
  }
}
