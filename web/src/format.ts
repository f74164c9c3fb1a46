/** Numbers, durations and moments for people. Absent is "–", never 0. */

export const ABSENT = "–";
const THIN = "\u202f";

/** Return a number with about `digits` significant digits, without noise. */
export function number(value: number | null | undefined, digits = 4): string {
  if (value === null || value === undefined) return ABSENT;
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e15 || size < 1e-4) return signed(exponent(value, digits));
  if (Number.isInteger(value) && size < 1e7) return signed(grouped(String(value)));
  if (size >= 1e5) return signed(grouped(String(Math.round(value))));
  const text = value.toPrecision(digits);
  return signed(text.includes("e") ? grouped(String(Math.round(value))) : trimmed(text));
}

function exponent(value: number, digits: number): string {
  const [mantissa = "0", power = "0"] = value.toExponential(Math.max(0, digits - 2)).split("e");
  return `${trimmed(mantissa)}e${power.replace("+", "")}`;
}

function trimmed(text: string): string {
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

function signed(text: string): string {
  return text.replace(/^-/, "−");
}

function grouped(text: string): string {
  return text.length < 6 ? text : text.replace(/\B(?=(\d{3})+$)/g, THIN);
}

const LETTERS = [
  [1e12, "T"],
  [1e9, "G"],
  [1e6, "M"],
  [1e3, "k"],
] as const;

/** Return a large count in short: 12.4k, 3.1M; beyond thousands of T as a power of 10, as 2.5e19. */
export function count(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return number(value);
  const short = Number(value.toPrecision(3));
  const size = Math.abs(short);
  const [factor, letter] = LETTERS.find(([limit]) => size >= limit) ?? [1, ""];
  if (size < 1e4 || size >= 1e15) return number(size < 1e4 ? value : short, 3);
  return signed(`${trimmed((short / factor).toPrecision(3))}${letter}`);
}

/** A sentence begins with a capital; the server's words are parts of sentences. */
export function capital(text: string): string {
  return text.slice(0, 1).toUpperCase() + text.slice(1);
}

const BYTES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** Return bytes in the power of 1024 that reads best. */
export function bytes(value: number): string {
  let place = 0;
  let size = value;
  while (Math.abs(size) >= 1000 && place < BYTES.length - 1) {
    size /= 1024;
    place += 1;
  }
  return `${number(size, 3)}${THIN}${BYTES[place] ?? ""}`;
}

/** Return a measured duration: 12 µs, 3.4 ms, 1.25 s, 4m 10s. */
export function duration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return number(seconds);
  const size = Math.abs(seconds);
  if (size >= 60) return clock(seconds);
  if (size >= 1) return `${number(seconds, 3)}${THIN}s`;
  if (size >= 1e-3) return `${number(seconds * 1e3, 3)}${THIN}ms`;
  if (size >= 1e-6) return `${number(seconds * 1e6, 3)}${THIN}µs`;
  return size === 0 ? `0${THIN}s` : `${number(seconds * 1e9, 3)}${THIN}ns`;
}

/** Return an amount of money: two digits after the point, or enough to show that it is not nothing. */
export function amount(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return number(value);
  const size = Math.abs(value);
  if (size >= 1e5) return number(Math.round(value));
  if (size >= 0.1 || size === 0) return signed(value.toFixed(2));
  return size >= 1e-4 ? signed(value.toPrecision(2)) : "<0.0001";
}

/** Return a span of time in its two largest units: 3d 4h, 2h 05m, 4m 10s, 12s. */
export function clock(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return ABSENT;
  const sign = seconds < 0 ? "−" : "";
  const whole = Math.round(Math.abs(seconds));
  const [days, hours, minutes, rest] = [
    Math.floor(whole / 86400),
    Math.floor(whole / 3600) % 24,
    Math.floor(whole / 60) % 60,
    whole % 60,
  ];
  if (days >= 1000) return `${sign}${count(days)}d`;
  if (days) return `${sign}${days}d ${hours}h`;
  if (hours) return `${sign}${hours}h ${two(minutes)}m`;
  if (minutes) return `${sign}${minutes}m ${two(rest)}s`;
  return `${sign}${rest}s`;
}

function two(value: number): string {
  return String(value).padStart(2, "0");
}

/** Return how long ago a moment was, in one unit. */
export function ago(seconds: number): string {
  if (seconds < 1.5) return "now";
  if (seconds < 90) return `${Math.round(seconds)} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)} h ago`;
  if (seconds < 60 * 86400) return `${Math.round(seconds / 86400)} days ago`;
  return seconds < 700 * 86400
    ? `${Math.round(seconds / 2629800)} months ago`
    : `${Math.round(seconds / 31557600)} years ago`;
}

/** Return a moment (seconds since 1970) in the reader's own time: 14:03:12, with the day if it is not today. */
export function moment(time: number | null | undefined, now: number = Date.now() / 1000): string {
  if (time === null || time === undefined || !Number.isFinite(time)) return ABSENT;
  const date = new Date(time * 1000);
  const today = new Date(now * 1000);
  const hours = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  if (date.toDateString() === today.toDateString()) return hours;
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${hours}`;
}

const SUFFIXES: Record<string, string> = {
  celsius: "°C",
  watts: "W",
  joules: "J",
  hertz: "Hz",
  steps: "steps",
  samples: "samples",
  tokens: "tokens",
  nats: "nats",
  "samples/second": "samples/s",
  "tokens/second": "tokens/s",
  "steps/second": "steps/s",
  "batches/second": "batches/s",
};

/** Return a value of a metric in the way its unit is read. */
export function value(amount: number | null | undefined, unit = ""): string {
  if (amount === null || amount === undefined || !Number.isFinite(amount)) return number(amount);
  if (unit === "bytes") return bytes(amount);
  if (unit === "bytes/second") return `${bytes(amount)}/s`;
  if (unit === "seconds") return duration(amount);
  if (unit === "ratio") return `${number(amount * 100, 3)}${THIN}%`;
  if (unit === "percent") return `${number(amount, 3)}${THIN}%`;
  if (unit === "hertz" && Math.abs(amount) >= 1e6) return `${number(amount / 1e6, 4)}${THIN}MHz`;
  const suffix = SUFFIXES[unit] ?? unit;
  const text = brief(amount, unit);
  return suffix ? `${text}${THIN}${suffix}` : text;
}

/** Return a value without the name of its unit, where the chart it stands in says that already. */
export function brief(amount: number | null, unit = ""): string {
  if (amount === null || !Number.isFinite(amount)) return number(amount);
  if (/^(bytes|bytes\/second|seconds|ratio|percent)$/.test(unit)) return value(amount, unit);
  return unit.includes("second") || Math.abs(amount) >= 1e7 ? count(amount) : number(amount);
}

/** Return the labels of an axis: as many decimals as its step needs, one unit for all; on a log axis each as it reads best. */
export function ticks(values: number[], unit = "", log = false): string[] {
  if (log) return logTicks(values, unit);
  const step = values.length > 1 ? Math.abs((values[1] ?? 0) - (values[0] ?? 0)) : 0;
  const largest = Math.max(...values.map(Math.abs), 0);
  if (unit === "bytes" || unit === "bytes/second") {
    let place = 0;
    for (let size = largest; size >= 1000 && place < BYTES.length - 1; size /= 1024) place += 1;
    const factor = 1024 ** place;
    const each = unit === "bytes" ? "" : "/s";
    return values.map((one) => `${plain(one / factor, step / factor)}${THIN}${BYTES[place] ?? ""}${each}`);
  }
  if (unit === "seconds") {
    const [factor, letter] = largest >= 1 || largest === 0 ? [1, "s"] : largest >= 1e-3 ? [1e3, "ms"] : [1e6, "µs"];
    return values.map((one) => `${plain(one * factor, step * factor)}${THIN}${letter}`);
  }
  if (unit === "ratio") return values.map((one) => `${plain(one * 100, step * 100)}${THIN}%`);
  const [factor, letter] =
    largest >= 1e15
      ? ([1, ""] as const)
      : (LETTERS.find(([limit]) => largest >= 1e4 && largest >= limit) ?? ([1, ""] as const));
  return values.map((one) => (one === 0 ? "0" : `${plain(one / factor, step / factor)}${letter}`));
}

/** Each value as its unit reads best; without one all as powers of 10 where some are so large that they have no other name. */
function logTicks(values: number[], unit: string): string[] {
  if (["bytes", "bytes/second", "seconds", "ratio"].includes(unit)) return values.map((one) => value(one, unit));
  const vast = values.some((one) => one >= 1e15);
  return values.map((one) => (vast && one >= 1e4 ? exponent(one, 3) : count(one)));
}

function plain(amount: number, step: number): string {
  if (amount === 0) return "0";
  const size = Math.abs(amount);
  if (size < 1e-3 || size >= 1e7 || step === 0) return number(amount, 3);
  return signed(amount.toFixed(decimals(step)));
}

/** Return how many decimals tell the ticks of an axis apart, exactly where few are enough. */
function decimals(step: number): number {
  const least = Math.min(8, Math.max(0, Math.ceil(-Math.log10(step) - 1e-9)));
  for (let many = least; many <= Math.min(8, least + 2); many += 1) {
    const scaled = step * 10 ** many;
    if (Math.abs(scaled - Math.round(scaled)) < 1e-6 * scaled) return many;
  }
  return least;
}
