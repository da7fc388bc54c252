// Blue for positive weights and orange for negative ones, starting from the background colour; safe for colour-blind readers.
const RAMPS = {
  light: { plus: ["#ffffff", "#b5d8ee", "#56a5d8", "#0072b2", "#03304d"], minus: ["#ffffff", "#f7d3ab", "#ec9645", "#d55e00", "#5c2600"] },
  dark: { plus: ["#16181b", "#0d3a57", "#0072b2", "#56b4e9", "#e9f6ff"], minus: ["#16181b", "#542a08", "#b85000", "#e69f00", "#fff3d9"] },
};
const darkness = matchMedia("screen and (prefers-color-scheme: dark)");
const LEVELS = 256;

function ramps() {
  return RAMPS[darkness.matches ? "dark" : "light"];
}

function channels(colour) {
  return [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
}

// The red, green and blue values of each level, concatenated.
function levels(stops) {
  const colours = stops.map(channels);
  const table = new Uint8ClampedArray(LEVELS * 3);
  for (let level = 0; level < LEVELS; level++) {
    const place = (level / (LEVELS - 1)) * (stops.length - 1);
    const below = Math.min(Math.floor(place), stops.length - 2);
    for (let c = 0; c < 3; c++) {
      table[level * 3 + c] = colours[below][c] + (place - below) * (colours[below + 1][c] - colours[below][c]);
    }
  }
  return table;
}

// Most weights are small; the square root makes them visible.
function strength(weight, top) {
  return Math.sqrt(Math.min(Math.abs(weight) / top, 1));
}

// The map as an image with one pixel per weight; pixels of future tokens are transparent.
function paint({ n, weights, causal }, top) {
  const { plus, minus } = ramps();
  const tables = [levels(plus), levels(minus)];
  const canvas = Object.assign(document.createElement("canvas"), { width: n, height: n });
  const image = new ImageData(n, n);
  for (let query = 0; query < n; query++) {
    for (let key = 0; key < (causal ? query + 1 : n); key++) {
      const i = query * n + key;
      const table = tables[weights[i] < 0 ? 1 : 0];
      const level = Math.round(strength(weights[i], top) * (LEVELS - 1));
      for (let c = 0; c < 3; c++) image.data[i * 4 + c] = table[level * 3 + c];
      image.data[i * 4 + 3] = 255;
    }
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

function showScale(box, top, signed) {
  const { plus, minus } = ramps();
  const stops = signed ? [...minus.slice(1).reverse(), ...plus] : plus;
  const strip = element("div", { class: "strip" });
  strip.style.background = `linear-gradient(to right, ${stops.join(", ")})`;
  const parts = signed ? [-1, -0.5, -0.1, 0, 0.1, 0.5, 1] : [0, 0.01, 0.1, 0.5, 1];
  const marks = parts.map((part) => {
    const beyond = part === 1 && top < 1 ? "≥ " : part === -1 && top < 1 ? "≤ " : "";
    const mark = element("span", {}, `${beyond}${part < 0 ? "−" : ""}${+(100 * Math.abs(part) * top).toPrecision(2)}%`);
    const place = Math.sign(part) * Math.sqrt(Math.abs(part));
    mark.style.left = `${100 * (signed ? (place + 1) / 2 : place)}%`;
    return mark;
  });
  box.replaceChildren(strip, element("div", { class: "ticks" }, ...marks));
}

function element(kind, attributes = {}, ...children) {
  const made = document.createElement(kind);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function percent(share) {
  const size = Math.abs(share);
  if (size > 0 && size < 0.0005) return "<0.1%";
  return `${share < 0 ? "−" : ""}${(100 * size).toFixed(1)}%`;
}
