// A map on a canvas, with tokens as labels if there is room for them.
const LABEL_CELL = 9.5;
const LONGEST_LABEL = 14;

class HeatMap {
  constructor(tokens, labelled) {
    this.canvas = element("canvas");
    this.labels = tokens.map(label).map((text) => (text.length > LONGEST_LABEL ? `${text.slice(0, LONGEST_LABEL - 1)}…` : text));
    this.labelled = labelled;
    this.query = this.key = null;
    this.width = 0;
    new ResizeObserver(() => this.canvas.clientWidth !== this.width && this.draw()).observe(this.canvas);
  }

  show(map, top, name) {
    this.map = map;
    this.image = paint(map, top);
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", name);
    this.draw();
  }

  mark(query, key) {
    if (query === this.query && key === this.key) return;
    [this.query, this.key] = [query, key];
    this.draw();
  }

  // The query and the key under the pointer, or null outside the map.
  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const query = Math.floor((event.clientY - box.top - this.margin) / this.cell);
    const key = Math.floor((event.clientX - box.left - this.margin) / this.cell);
    const { n, causal } = this.map;
    if (query < 0 || query >= n || key >= n) return null;
    return { query, key: key < 0 || (causal && key > query) ? null : key };
  }

  layOut(context) {
    const { n } = this.map;
    const room = this.width / (n + 6) >= LABEL_CELL * 0.8;
    context.font = `${this.fontSize()}px ui-monospace, Menlo, "DejaVu Sans Mono", monospace`;
    const widest = Math.max(...this.labels.map((text) => context.measureText(text).width));
    const margin = Math.min(Math.ceil(widest) + 8, this.width * 0.3);
    this.hasLabels = this.labelled && room && (this.width - margin) / n >= LABEL_CELL;
    this.margin = this.hasLabels ? margin : 0;
    this.cell = (this.width - this.margin) / n;
  }

  fontSize() {
    return Math.min(12, Math.max(9, (this.width / this.map.n) * 0.7));
  }

  draw() {
    this.width = this.canvas.clientWidth;
    if (!this.map || !this.width) return;
    const context = this.canvas.getContext("2d");
    this.layOut(context);
    const size = this.width, ratio = devicePixelRatio || 1;
    this.canvas.style.height = `${size}px`;
    this.canvas.width = this.canvas.height = Math.round(size * ratio);
    context.scale(this.canvas.width / size, this.canvas.width / size);
    const style = getComputedStyle(this.canvas);
    context.fillStyle = style.getPropertyValue("--future");
    context.fillRect(this.margin, this.margin, size, size);
    context.imageSmoothingEnabled = this.cell * ratio < 1;
    context.drawImage(this.image, this.margin, this.margin, size - this.margin, size - this.margin);
    if (this.hasLabels) this.writeLabels(context, style);
    if (this.query !== null) this.drawMark(context, style);
  }

  writeLabels(context, style) {
    context.font = `${this.fontSize()}px ui-monospace, Menlo, "DejaVu Sans Mono", monospace`;
    context.textBaseline = "middle";
    const [ink, soft] = [style.getPropertyValue("--ink"), style.getPropertyValue("--soft")];
    const most = this.margin - 6;
    this.labels.forEach((text, i) => {
      const middle = this.margin + (i + 0.5) * this.cell;
      context.fillStyle = this.query === null || i === this.query ? ink : soft;
      context.textAlign = "right";
      context.fillText(text, this.margin - 5, middle, most);
      context.save();
      context.translate(middle, this.margin - 5);
      context.rotate(-Math.PI / 2);
      context.textAlign = "left";
      context.fillStyle = this.key === null || i === this.key ? ink : soft;
      context.fillText(text, 0, 0, most);
      context.restore();
    });
  }

  drawMark(context, style) {
    const { margin, cell, query, key } = this;
    const last = this.map.causal ? query + 1 : this.map.n;
    const around = cell < 5 ? 1 : 0; // a frame must not cover a thin row
    const frame = (from, to) =>
      context.strokeRect(margin + from * cell - around, margin + query * cell - around, (to - from) * cell + 2 * around, cell + 2 * around);
    context.strokeStyle = style.getPropertyValue("--ink");
    context.lineWidth = 1;
    frame(0, last);
    context.lineWidth = 2.5;
    if (key !== null) frame(key, key + 1);
  }
}
