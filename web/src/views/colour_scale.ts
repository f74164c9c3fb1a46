/** Color scales: from idle to busy, and from on time to late. */

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

type Colour = readonly [number, number, number];

// From on time to late: one hue that darkens (or brightens on a dark page), readable with any color vision.
const LATE: Record<"light" | "dark", readonly Colour[]> = {
  light: [
    [236, 239, 243],
    [253, 219, 180],
    [250, 160, 90],
    [217, 83, 30],
    [122, 28, 12],
  ],
  dark: [
    [30, 38, 48],
    [92, 54, 28],
    [168, 80, 24],
    [240, 132, 46],
    [255, 226, 150],
  ],
};
const EARLY: Record<"light" | "dark", Colour> = { light: [203, 222, 240], dark: [30, 58, 86] };

/** Return the color of a lateness from 0 to 1; below 0 a rank is faster than the median. */
export function lateShade(share: number, dark: boolean): Colour {
  const theme = dark ? "dark" : "light";
  const scale = share < 0 ? [LATE[theme][0] as Colour, EARLY[theme]] : LATE[theme];
  const at = Math.min(1, Math.abs(share)) * (scale.length - 1);
  const [low, part] = [Math.floor(at), at - Math.floor(at)];
  const one = scale[low] ?? EARLY[theme];
  const other = scale[Math.min(scale.length - 1, low + 1)] ?? one;
  return [0, 1, 2].map((channel) =>
    Math.round((one[channel] ?? 0) * (1 - part) + (other[channel] ?? 0) * part),
  ) as unknown as Colour;
}
