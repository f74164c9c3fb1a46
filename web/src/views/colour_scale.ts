/** A color scale from idle to busy. */

// Viridis: even in brightness, and readable with any color vision.
const SCALE = ["#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725"].map(
  (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)) as [number, number, number],
);

/** Return the color of a share from 0 to 1. */
export function shade(share: number): [number, number, number] {
  const at = Math.max(0, Math.min(1, share)) * (SCALE.length - 1);
  const [low, part] = [Math.floor(at), at - Math.floor(at)];
  const [one, other] = [SCALE[low] ?? [0, 0, 0], SCALE[Math.min(SCALE.length - 1, low + 1)] ?? [0, 0, 0]];
  return [0, 1, 2].map((channel) => Math.round((one[channel] ?? 0) * (1 - part) + (other[channel] ?? 0) * part)) as [
    number,
    number,
    number,
  ];
}
