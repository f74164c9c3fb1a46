"""Pictures of pages made small, and how far two of them are apart; the browser itself does the arithmetic."""

from __future__ import annotations

import base64
from pathlib import Path

LOOKS = Path(__file__).parent / "pictures"
WIDTH = 160
"""Pixels of a kept picture: layout and colours count, not the rendering of letters."""
BLOCK = 4

SHRUNK = """async ([picture, width]) => {
  const image = await createImageBitmap(await (await fetch(picture)).blob());
  const canvas = document.createElement('canvas');
  canvas.width = width; canvas.height = Math.round(image.height * width / image.width);
  const context = canvas.getContext('2d');
  context.imageSmoothingQuality = 'high';
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL('image/png');
}"""
APART = """async ([one, other, block]) => {
  const pixels = async (picture) => {
    const image = await createImageBitmap(await (await fetch(picture)).blob());
    const canvas = new OffscreenCanvas(image.width, image.height), context = canvas.getContext('2d');
    context.drawImage(image, 0, 0);
    return context.getImageData(0, 0, image.width, image.height);
  };
  const [a, b] = [await pixels(one), await pixels(other)];
  if (a.width !== b.width || a.height !== b.height) return 1;
  const ground = [...a.data.slice((a.width * a.height - 1) * 4, a.width * a.height * 4)];
  let far = 0, inked = 0;
  for (let top = 0; top < a.height; top += block) for (let left = 0; left < a.width; left += block) {
    const [own, others] = [[0, 0, 0], [0, 0, 0]]; let seen = 0;
    for (let y = top; y < Math.min(a.height, top + block); y += 1)
    for (let x = left; x < Math.min(a.width, left + block); x += 1) {
      const at = (y * a.width + x) * 4; seen += 1;
      for (let channel = 0; channel < 3; channel += 1) {
        own[channel] += a.data[at + channel]; others[channel] += b.data[at + channel];
      }
    }
    const away = (one, other) => Math.max(...one.map((sum, channel) => Math.abs(sum - other[channel]))) / seen / 255;
    const plain = ground.slice(0, 3).map((value) => value * seen);
    if (Math.max(away(own, plain), away(others, plain)) < 0.05) continue;
    inked += 1; far += away(own, others) > 0.08;
  }
  return inked ? far / inked : 0;
}"""
"""Of the blocks that hold something in either picture, the share that differs clearly, 0 to 1."""


def address_of(picture):
    """Return the bytes of a PNG as an address."""
    return f"data:image/png;base64,{base64.b64encode(picture).decode()}"


def shrunk(desk, picture):
    """Return a picture made small, as the bytes of a PNG; `desk` is a blank page."""
    made = desk.evaluate(SHRUNK, [address_of(picture), WIDTH])
    return base64.b64decode(made.partition(",")[2])


def apart(desk, one, other):
    """Return how far two small pictures are apart, 0 to 1."""
    return desk.evaluate(APART, [address_of(one), address_of(other), BLOCK])
