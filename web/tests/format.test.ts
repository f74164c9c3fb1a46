import assert from "node:assert/strict";
import { test } from "node:test";

import { ABSENT, ago, amount, brief, bytes, clock, count, duration, number, ticks, value } from "../src/format.ts";

const plain = (text: string): string => text.replace(/\u202f/g, " ");

test("absent is never 0, and what is not finite says so", () => {
  assert.equal(number(null), ABSENT);
  assert.equal(value(undefined, "bytes"), ABSENT);
  assert.equal(value(NaN, "seconds"), "NaN");
  assert.equal(value(-Infinity, "ratio"), "−∞");
  assert.equal(duration(null), ABSENT);
});

test("numbers keep what matters and no noise", () => {
  assert.equal(number(0.1 + 0.2), "0.3");
  assert.equal(number(2.6230000001), "2.623");
  assert.equal(number(-3), "−3");
  assert.equal(plain(number(1234567)), "1 234 567");
  assert.equal(number(3e-5), "3e-5");
  assert.equal(number(1.2345e-8), "1.23e-8");
  assert.equal(number(0), "0");
});

test("units are read as people read them", () => {
  assert.equal(plain(value(0.904, "ratio")), "90.4 %");
  assert.equal(plain(bytes(43 * 2 ** 20)), "43 MiB");
  assert.equal(plain(value(2 ** 31, "bytes/second")), "2 GiB/s");
  assert.equal(plain(duration(0.0506)), "50.6 ms");
  assert.equal(plain(duration(4e-7)), "400 ns");
  assert.equal(duration(250), "4m 10s");
  assert.equal(plain(value(2.11e6, "tokens/second")), "2.11M tokens/s");
  assert.equal(count(200000), "200k");
});

test("spans of time show their two largest units", () => {
  assert.equal(clock(59.4), "59s");
  assert.equal(clock(3599.6), "1h 00m");
  assert.equal(clock(90061), "1d 1h");
  assert.equal(clock(-61), "−1m 01s");
  assert.equal(ago(0.4), "now");
  assert.equal(ago(12), "12 s ago");
});

test("the labels of an axis can be told apart", () => {
  assert.deepEqual(ticks([0, 0.25, 0.5, 0.75, 1]), ["0", "0.25", "0.50", "0.75", "1.00"]);
  assert.deepEqual(ticks([0, 50000, 100000]), ["0", "50k", "100k"]);
  assert.deepEqual(ticks([0, 0.1, 0.2], "seconds").map(plain), ["0 ms", "100 ms", "200 ms"]);
  assert.deepEqual(ticks([0, 2 ** 30], "bytes").map(plain), ["0 GiB", "1 GiB"]);
});

test("money has two digits after the point, and is never nothing unless it is", () => {
  assert.deepEqual([12.345, 0.1, 0, 0.0123, 3e-6].map(amount), ["12.35", "0.10", "0.00", "0.012", "<0.0001"]);
  assert.equal(plain(amount(1234567.8)), "1 234 568");
  assert.equal(amount(null), ABSENT);
});

test("what is larger than any letter is a power of 10", () => {
  assert.equal(count(2e19), "2e19");
  assert.equal(count(-7.4574444e22), "−7.5e22");
  assert.equal(count(999.96e6), "1G");
  assert.equal(count(999.9e12), "1e15");
  assert.equal(plain(value(2e19)), "2e19");
  assert.deepEqual(ticks([0, 2e19, 4e19]), ["0", "2e19", "4e19"]);
  assert.deepEqual(ticks([1, 1e11, 1e22], "", true), ["1", "1e11", "1e22"]);
  assert.equal(clock(1e20), "1.2e15d");
});

test("the labels of an axis tell its ticks apart", () => {
  assert.deepEqual(ticks([123456.2, 123456.4, 123456.6]), ["123.4562k", "123.4564k", "123.4566k"]);
  assert.deepEqual(ticks([0, 5000, 10000]), ["0", "5k", "10k"]);
  assert.deepEqual(ticks([0.001, 0.1, 10, 1000], "", true), ["0.001", "0.1", "10", "1000"]);
});

test("where the unit is known already a value is short", () => {
  assert.equal(brief(2.13e6, "tokens/second"), "2.13M");
  assert.equal(plain(brief(0.246, "seconds")), "246 ms");
  assert.equal(brief(NaN, "ratio"), "NaN");
});
