/** The little of node that the tests use. */
declare module "node:test" {
  export function test(rule: string, body: () => void | Promise<void>): void;
}
declare module "node:assert/strict" {
  const assert: {
    equal(one: unknown, other: unknown, text?: string): void;
    deepEqual(one: unknown, other: unknown, text?: string): void;
    ok(value: unknown, text?: string): void;
    throws(body: () => unknown, pattern?: RegExp): void;
  };
  export default assert;
}
declare module "node:fs" {
  export function readFileSync(path: string, encoding: "utf8"): string;
}
