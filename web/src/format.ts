/**
 * Numbers and times for people, by the same rules as `stepscope/core/numbers.py`.
 * Both pass `tests/golden/numbers.json`.
 * Spaces inside a number are narrow and do not break.
 */

export const ABSENT = "-";
const SPACE = "\u202f";
const [DAY, HOUR, MINUTE] = [86400, 3600, 60];
const SPANS = [
  [DAY, "d", HOUR, "h"],
  [HOUR, "h", MINUTE, "min"],
  [MINUTE, "min", 1, "s"],
] as const;
const FRACTIONS = [
  [1, "s"],
  [1e-3, "ms"],
  [1e-6, "µs"],
  [1e-9, "ns"],
] as const;
const SIZES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
const PREFIXES = [
  [1e12, "T"],
  [1e9, "G"],
  [1e6, "M"],
  [1e3, "k"],
] as const;
/** Counts below this are written out; from the second on there is no prefix. */
const [UNSCALED, LARGEST] = [9999.5, 999.5e12];
const SYMBOLS: Record<string, string> = { celsius: "°C", watts: "W", joules: "J", hertz: "Hz", percent: "%" };
const BASE_UNITS: Record<string, readonly [number, string]> = {
  MiB: [2 ** 20, "bytes"],
  GiB: [2 ** 30, "bytes"],
  milliseconds: [1e-3, "seconds"],
  "MiB/second": [2 ** 20, "bytes/second"],
};
/** Factors from which a change is no longer a percentage, and from which it is only "over". */
const [MANY_TIMES, MOST_TIMES] = [10, 100_000];

type Maybe = number | null | undefined;

function isNumber(amount: Maybe): amount is number {
  return amount !== null && amount !== undefined && Number.isFinite(amount);
}

/** Return a number with so many significant digits; powers of ten below 0.001 and from a million on. */
export function number(amount: Maybe, digits = 4): string {
  if (amount === null || amount === undefined) return ABSENT;
  if (!Number.isFinite(amount)) return Number.isNaN(amount) ? "NaN" : amount > 0 ? "inf" : "-inf";
  const size = Math.abs(amount);
  if (size === 0) return "0";
  if (size < 1e-3 || size >= 999_999.5) {
    return power(amount);
  }
  if (size >= 10 ** (digits - 1) - 0.05) return amount.toFixed(0);
  return trimmed(amount.toFixed(digits - 1 - Math.floor(Math.log10(size))));
}

function trimmed(text: string): string {
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

/** Return a value in the unit that suits it: 21.9 GiB, 34 ms, 91.6 %, 12.3k samples/s. */
export function value(amount: Maybe, unit = ""): string {
  if (!isNumber(amount)) return number(amount);
  const [factor, base] = BASE_UNITS[unit] ?? [1, unit];
  const scaled = amount * factor;
  const [kind = "", per] = base.split("/");
  const rate = per === undefined ? "" : `/${per === "second" ? "s" : per}`;
  if (kind === "seconds") return duration(scaled) + rate;
  if (kind === "bytes") return bytes(scaled) + rate;
  if (kind === "ratio") return `${number(scaled * 100, 3)}${SPACE}%${rate}`;
  if (kind === "percent") return `${number(scaled, 3)}${SPACE}%${rate}`;
  if (!kind) return number(scaled) + rate;
  const [figure, prefix] = withPrefix(scaled);
  const symbol = SYMBOLS[kind];
  return symbol ? `${figure}${SPACE}${prefix}${symbol}${rate}` : `${figure}${prefix}${SPACE}${kind}${rate}`;
}

/** Return a value without the name of its unit, where a title shows it: 12.3k of samples per second. */
export function short(amount: Maybe, unit = ""): string {
  if (!isNumber(amount)) return number(amount);
  if (!unit || unit in BASE_UNITS || /^(seconds|bytes|ratio|percent)(\/|$)/.test(unit)) return value(amount, unit);
  return withPrefix(amount).join("");
}

/** Return the figure of a count and its SI prefix, which is empty below 10 000 and beyond the largest prefix. */
function withPrefix(amount: number): [string, string] {
  const size = Math.abs(amount);
  if (size < UNSCALED || size >= LARGEST) return [number(amount, 3), ""];
  const [factor, prefix] = PREFIXES.find(([limit]) => size >= limit * 0.9995) ?? [1, ""];
  return [number(amount / factor, 3), prefix];
}

/** Return a duration: 34 ms, 2.5 s, 1 h 12 min, 3 d 4 h. */
export function duration(seconds: Maybe): string {
  if (!isNumber(seconds)) return number(seconds);
  const size = Math.abs(seconds);
  if (size < MINUTE - 0.05) {
    const [scale, label] = FRACTIONS.find(([limit]) => size >= limit * 0.9995) ?? (size ? [1e-9, "ns"] : [1, "s"]);
    return `${number(seconds / scale, 3)}${SPACE}${label}`;
  }
  const sign = seconds < 0 ? "-" : "";
  const whole = Math.round(size);
  if (whole >= 1000 * DAY) return `${sign}${number(whole / DAY, 3)}${SPACE}d`;
  const [scale, label, lower, rest] = SPANS.find(([limit]) => whole >= limit) ?? SPANS[2];
  const remainder = Math.floor((whole % scale) / lower);
  const first = `${sign}${Math.floor(whole / scale)}${SPACE}${label}`;
  return remainder ? `${first}${SPACE}${remainder}${SPACE}${rest}` : first;
}

/** Return how long ago something was, in one unit: now, 5 min, 3 h, 12 d. */
export function age(seconds: number): string {
  const [scale, label] = SPANS.find(([limit]) => seconds >= limit) ?? [1, "s"];
  return seconds < 5 ? "now" : `${Math.floor(seconds / scale)}${SPACE}${label}`;
}

/** Return how long ago something was as part of a sentence: now, 5 min ago. */
export function ago(seconds: number): string {
  return seconds < 5 ? "now" : `${age(seconds)} ago`;
}

/** Return a size in powers of 1024: 512 B, 21.9 GiB. */
export function bytes(amount: Maybe): string {
  if (!isNumber(amount)) return number(amount);
  const power = sizePower(amount);
  return `${number(amount / 1024 ** power, 3)}${SPACE}${SIZES[power] ?? ""}`;
}

function sizePower(amount: number): number {
  const power = SIZES.findLastIndex((_, at) => Math.abs(amount) >= 1024 ** at * 0.9995);
  return Math.max(0, power);
}

/** Return a share in whole percent: 42 %, <1 %. */
export function share(ratio: Maybe): string {
  if (!isNumber(ratio)) return number(ratio);
  return ratio > 0 && ratio < 0.005 ? `<1${SPACE}%` : `${(ratio * 100).toFixed(0)}${SPACE}%`;
}

/** Return a relative change, new / old - 1: +3.21 %, and from a factor of 10 on "60 times more" or "less". */
export function change(ratio: Maybe): string {
  if (!isNumber(ratio)) return number(ratio);
  const factor = ratio + 1;
  if (factor >= MANY_TIMES) return `${times(factor)} more`;
  if (factor > 0 && factor <= 1 / MANY_TIMES) return `${times(1 / factor)} less`;
  if (ratio <= -MANY_TIMES) return "changed sign";
  const size = Math.abs(ratio) * 100;
  if (size < 0.005) return `0${SPACE}%`;
  return `${ratio > 0 ? "+" : ""}${(ratio * 100).toFixed(size < 10 ? 2 : size < 100 ? 1 : 0)}${SPACE}%`;
}

function times(factor: number): string {
  return factor >= MOST_TIMES ? `over ${count(MOST_TIMES)} times` : `${count(Math.round(factor))} times`;
}

/** Return a whole number in groups of three digits: 12 345. */
export function count(amount: Maybe): string {
  if (!isNumber(amount)) return number(amount);
  return Math.round(amount)
    .toFixed(0)
    .replace(/\B(?=(\d{3})+$)/g, SPACE);
}

/** Return an amount of money: two decimals, or enough digits to show that it is not zero. */
export function amount(money: Maybe): string {
  if (!isNumber(money)) return number(money);
  const size = Math.abs(money);
  if (size >= 100_000) return number(money);
  if (size >= 0.1 || size === 0) return money.toFixed(2);
  return size >= 1e-4 ? String(Number(money.toPrecision(2))) : "<0.0001";
}

/** Return a text with a capital first letter; texts of the server are parts of sentences. */
export function capital(text: string): string {
  return text.slice(0, 1).toUpperCase() + text.slice(1);
}

/** Return a time (Unix seconds) in the reader's time zone: 14:03:12, with the date if it is not today. */
export function moment(time: Maybe, now: number = Date.now() / 1000): string {
  if (!isNumber(time)) return ABSENT;
  const date = new Date(time * 1000);
  const today = new Date(now * 1000);
  const clock = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  if (date.toDateString() === today.toDateString()) return clock;
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${clock}`;
}

function two(amount: number): string {
  return String(amount).padStart(2, "0");
}

/** Return the labels of an axis: as many decimals as its steps need, one unit for all except on a log axis. */
export function ticks(values: number[], unit = "", log = false): string[] {
  if (log) return logTicks(values, unit);
  const step = values.length > 1 ? Math.abs((values[1] ?? 0) - (values[0] ?? 0)) : 0;
  const largest = Math.max(...values.map(Math.abs), 0);
  const [factor, label] = tickUnit(largest, unit);
  return values.map((one) => (one === 0 && !unit ? "0" : `${decimal(one / factor, step / factor)}${label}`));
}

/** Return the factor and the label that all ticks of an axis share. */
function tickUnit(largest: number, unit: string): readonly [number, string] {
  if (unit === "bytes" || unit === "bytes/second") {
    const power = sizePower(largest);
    return [1024 ** power, `${SPACE}${SIZES[power] ?? ""}${unit === "bytes" ? "" : "/s"}`];
  }
  if (unit === "seconds") {
    const [scale, label] = largest ? (FRACTIONS.find(([limit]) => largest >= limit) ?? [1e-9, "ns"]) : [1, "s"];
    return [scale, `${SPACE}${label}`];
  }
  if (unit === "ratio") return [0.01, `${SPACE}%`];
  const gap = SYMBOLS[unit] ? SPACE : "";
  const [factor, prefix] = (largest >= 1e4 && largest < LARGEST && PREFIXES.find(([limit]) => largest >= limit)) || [
    1,
    "",
  ];
  return [factor, `${gap}${prefix}${SYMBOLS[unit] ?? ""}`];
}

/** Each value as its unit suits it; all as powers of 10 if some have no prefix. */
function logTicks(values: number[], unit: string): string[] {
  if (/^(bytes|bytes\/second|seconds|ratio|percent)$/.test(unit)) return values.map((one) => value(one, unit));
  const vast = values.some((one) => one >= LARGEST);
  return values.map((one) => (vast && one >= 1e4 ? power(one) : withPrefix(one).join("")));
}

function power(amount: number): string {
  const [mantissa = "0", exponent = "0"] = amount.toExponential(2).split("e");
  return `${trimmed(mantissa)}e${exponent.replace("+", "")}`;
}

/** Return a tick with as many decimals as its axis needs. */
function decimal(amount: number, step: number): string {
  if (amount === 0) return "0";
  const size = Math.abs(amount);
  return size < 1e-3 || size >= 1e7 || step === 0 ? number(amount, 3) : amount.toFixed(decimals(step));
}

/** Return how many decimals distinguish the ticks of an axis. */
function decimals(step: number): number {
  const least = Math.min(8, Math.max(0, Math.ceil(-Math.log10(step) - 1e-9)));
  for (let many = least; many <= Math.min(8, least + 2); many += 1) {
    const scaled = step * 10 ** many;
    if (Math.abs(scaled - Math.round(scaled)) < 1e-6 * scaled) return many;
  }
  return least;
}
