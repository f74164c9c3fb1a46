/** Binary messages of the server: `SSB1`, the length of a JSON header, the header, columns. */

export interface Message {
  header: Record<string, unknown>;
  buffer: ArrayBuffer;
  /** Byte at which the columns begin. */
  start: number;
}

export interface CurveHead {
  run: string;
  name: string;
  rank: number | null;
  attempt: number;
  kind: "points" | "buckets";
  n: number;
  at: number;
  points: number;
  seq: number;
}

/** Buckets of one curve: (run, name, rank, attempt). A raw point is a bucket of one. */
export interface Columns {
  step: Float64Array;
  time: Float64Array;
  mean: Float64Array;
  min: Float64Array;
  max: Float64Array;
  last: Float64Array;
  minStep: Float64Array;
  maxStep: Float64Array;
  count: Float64Array;
  bad: Float64Array;
}

const MAGIC = 0x31425353; // "SSB1" read as a little-endian number
const text = new TextDecoder();

/** Split a response into its messages. */
export function decode(buffer: ArrayBuffer): Message[] {
  const found: Message[] = [];
  const view = new DataView(buffer);
  let at = 0;
  while (at + 8 <= buffer.byteLength) {
    if (view.getUint32(at, true) !== MAGIC) throw new Error("the server sent an unknown message");
    const size = view.getUint32(at + 4, true);
    const start = at + 8 + size;
    if (start > buffer.byteLength) throw new Error("the server's message is incomplete");
    const header = JSON.parse(text.decode(new Uint8Array(buffer, at + 8, size))) as Record<string, unknown>;
    found.push({ header, buffer, start });
    at = start + payload(header);
  }
  return found;
}

/** Return the length of a message's columns in bytes: curves give their positions, live frames have a fixed width. */
function payload(header: Record<string, unknown>): number {
  if (Array.isArray(header.curves)) {
    return (header.curves as CurveHead[]).reduce((most, curve) => Math.max(most, curve.at + width(curve)), 0);
  }
  const rows = Number(header.n ?? 0);
  return rows * 9 * 8 + padded(rows * 3 * 4);
}

function width(curve: CurveHead): number {
  return curve.kind === "points" ? curve.n * 24 : curve.n * 72;
}

function padded(bytes: number): number {
  return (bytes + 7) & ~7;
}

function doubles(message: Message, at: number, n: number): Float64Array {
  return new Float64Array(message.buffer, message.start + at, n);
}

function counts(message: Message, at: number, n: number): Float64Array {
  return Float64Array.from(new Uint32Array(message.buffer, message.start + at, n));
}

/** Return the curves of a message of `/api/series`. */
export function curvesOf(message: Message): { head: CurveHead; columns: Columns }[] {
  return (message.header.curves as CurveHead[]).map((head) => ({
    head,
    columns: head.kind === "points" ? raw(message, head) : buckets(message, head),
  }));
}

function raw(message: Message, head: CurveHead): Columns {
  const { at, n } = head;
  const step = doubles(message, at, n);
  const time = doubles(message, at + 8 * n, n);
  const last = doubles(message, at + 16 * n, n);
  const bad = new Float64Array(n);
  const value = last.slice();
  for (let place = 0; place < n; place += 1) {
    if (!Number.isFinite(value[place])) {
      value[place] = NaN;
      bad[place] = 1;
    }
  }
  return {
    step,
    time,
    mean: value,
    min: value,
    max: value,
    last,
    minStep: step,
    maxStep: step,
    count: new Float64Array(n).fill(1),
    bad,
  };
}

function buckets(message: Message, head: CurveHead): Columns {
  const { at, n } = head;
  const column = (place: number): Float64Array => doubles(message, at + 8 * n * place, n);
  return {
    step: column(0),
    time: column(1),
    mean: column(2),
    min: column(3),
    max: column(4),
    last: column(5),
    minStep: column(6),
    maxStep: column(7),
    count: counts(message, at + 64 * n, n),
    bad: counts(message, at + 68 * n, n),
  };
}

export interface Frame {
  header: {
    frame: number;
    cursor: string | number;
    new: [number, string, number, number][];
    n: number;
    status: unknown;
  };
  columns: Columns;
  seq: Float64Array;
  curve: Float64Array;
}

/** Return the rows of a message of `/api/live`. */
export function frameOf(message: Message): Frame {
  const header = message.header as Frame["header"];
  const n = header.n;
  const column = (place: number): Float64Array => doubles(message, 8 * n * place, n);
  return {
    header,
    columns: {
      step: column(0),
      time: column(1),
      mean: column(2),
      min: column(3),
      max: column(4),
      last: column(5),
      minStep: column(6),
      maxStep: column(7),
      count: counts(message, 76 * n, n),
      bad: counts(message, 80 * n, n),
    },
    seq: column(8),
    curve: counts(message, 72 * n, n),
  };
}
