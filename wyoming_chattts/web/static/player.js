// Plays framed PCM as it streams, and draws it.
//
// A frame is one byte of kind, the payload's length as big-endian uint32, and the payload: "h" a JSON
// header, "a" 16-bit mono PCM, "t" the timings, "e" an error.

export async function* frames(body) {
  const reader = body.getReader();
  let held = new Uint8Array(0);
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) {
        if (held.length) throw new Error("the answer was cut off");
        return;
      }
      const joined = new Uint8Array(held.length + value.length);
      joined.set(held);
      joined.set(value, held.length);
      held = joined;
      while (held.length >= 5) {
        const size = new DataView(held.buffer, held.byteOffset).getUint32(1);
        if (held.length < 5 + size) break;
        yield { kind: String.fromCharCode(held[0]), payload: held.slice(5, 5 + size) };
        held = held.slice(5 + size);
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

const Context = window.AudioContext || window.webkitAudioContext;

export class Player {
  // `plain` is an <audio> element for browsers without Web Audio.
  constructor(plain) {
    this.plain = plain;
    this.context = null;
    this.reset();
  }

  reset() {
    this.sources = [];
    this.samples = [];
    this.count = 0;
    this.power = 0;
    this.next = 0;
    this.rate = 24000;
    this.plain.hidden = true;
  }

  get seconds() {
    return this.count / this.rate;
  }

  // Called from a click, so that the browser lets it sound.
  begin() {
    this.stop();
    this.reset();
    if (!Context) return;
    this.context ??= new Context();
    this.context.resume().catch(() => {});
  }

  push(bytes) {
    const pcm = new Int16Array(bytes.buffer, bytes.byteOffset, bytes.byteLength >> 1);
    const floats = Float32Array.from(pcm, (v) => v / 32768);
    if (!floats.length) return;
    this.samples.push(floats);
    this.count += floats.length;
    for (const v of floats) this.power += v * v;
    if (!this.context) return;
    const buffer = this.context.createBuffer(1, floats.length, this.rate);
    buffer.copyToChannel(floats, 0);
    const source = this.context.createBufferSource();
    source.buffer = buffer;
    source.connect(this.context.destination);
    this.next = Math.max(this.next, this.context.currentTime + 0.06);
    source.start(this.next);
    this.next += buffer.duration;
    this.sources.push(source);
  }

  end() {
    if (this.context || !this.count) return;
    this.plain.src = URL.createObjectURL(wav(this.samples, this.count, this.rate));
    this.plain.hidden = false;
  }

  stop() {
    for (const source of this.sources) {
      try { source.stop(); } catch { /* it has not begun */ }
    }
    this.sources = [];
    this.next = 0;
  }

  get level() {
    return this.count ? Math.sqrt(this.power / this.count) : 0;
  }
}

function wav(parts, count, rate) {
  const view = new DataView(new ArrayBuffer(44 + 2 * count));
  const text = (at, s) => [...s].forEach((c, i) => view.setUint8(at + i, c.charCodeAt(0)));
  text(0, "RIFF"); view.setUint32(4, 36 + 2 * count, true); text(8, "WAVEfmt ");
  view.setUint32(16, 16, true); view.setUint16(20, 1, true); view.setUint16(22, 1, true);
  view.setUint32(24, rate, true); view.setUint32(28, 2 * rate, true); view.setUint16(32, 2, true);
  view.setUint16(34, 16, true); text(36, "data"); view.setUint32(40, 2 * count, true);
  let at = 44;
  for (const part of parts) for (const v of part) { view.setInt16(at, v * 32767, true); at += 2; }
  return new Blob([view], { type: "audio/wav" });
}

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// Fits a canvas to its place on the screen; returns its 2D context in CSS pixels.
function fitted(canvas) {
  const { width, height } = canvas.getBoundingClientRect();
  const scale = window.devicePixelRatio || 1;
  canvas.width = Math.max(1, width * scale);
  canvas.height = Math.max(1, height * scale);
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  return { context, width, height };
}

export function drawWave(canvas, player) {
  const { context, width, height } = fitted(canvas);
  context.strokeStyle = color("--wave");
  context.beginPath();
  const per = Math.max(1, player.count / width);
  let x = 0, low = 0, high = 0, seen = 0;
  for (const part of player.samples) {
    for (const v of part) {
      low = Math.min(low, v);
      high = Math.max(high, v);
      if (++seen >= per * (x + 1)) {
        context.moveTo(x + 0.5, height / 2 * (1 - high) - 0.5);
        context.lineTo(x + 0.5, height / 2 * (1 - low) + 0.5);
        x += 1;
        low = high = 0;
      }
    }
  }
  context.stroke();
}

export function drawPlot(canvas, values) {
  const { context, width, height } = fitted(canvas);
  const top = Math.max(1e-9, ...values) * 1.1;
  context.strokeStyle = color("--wave");
  context.lineWidth = 2;
  context.beginPath();
  const points = values.length === 1 ? [values[0], values[0]] : values;
  points.forEach((v, i) => {
    const x = (i / (points.length - 1)) * (width - 4) + 2;
    context[i ? "lineTo" : "moveTo"](x, height - 3 - (v / top) * (height - 8));
  });
  context.stroke();
}
