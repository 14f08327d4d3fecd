"""A strip below a picture with the policy's action, value and probabilities, for videos."""

import itertools

import numpy as np

from impala_mm.evaluation.video_writer import enlarge

_BACK, _DIM, _TEXT, _BAR, _CHOSEN = (
    (20, 24, 33),
    (44, 51, 68),
    (235, 238, 245),
    (110, 130, 165),
    (245, 158, 66),
)
_NARROWEST = 320  # width in pixels that the text needs
_MARGIN = 8
_LINE, _BARS = 22, 34  # heights in pixels


def overlay(
    frame: np.ndarray,  # uint8 [H, W, 3], RGB
    action: str,  # its name
    value: float,
    episode_return: float,
    policy: np.ndarray | None,  # [A]: probabilities, drawn as bars unless None
    chosen: int | None = None,  # index of the action among them
) -> np.ndarray:
    """Return the picture, enlarged if small, with a strip of text and bars below; [H', W', 3]."""
    picture = enlarge(frame)
    height, width = picture.shape[:2]
    wide = max(width, _NARROWEST)
    below = 2 * _LINE + _MARGIN + (0 if policy is None else _BARS + _MARGIN)
    canvas = np.full((height + below, wide, 3), _BACK, np.uint8)
    left = (wide - width) // 2
    canvas[:height, left : left + width] = picture
    _write(canvas, _MARGIN, height + _LINE, f"action {action}")
    _write(canvas, _MARGIN, height + 2 * _LINE, f"value {value:.2f}")
    _write(canvas, wide // 2, height + 2 * _LINE, f"return {episode_return:,.10g}")
    if policy is not None:
        _draw_bars(
            canvas[height + 2 * _LINE + _MARGIN : -_MARGIN, _MARGIN:-_MARGIN], policy, chosen
        )
    return canvas


def _write(picture: np.ndarray, x: int, baseline: int, text: str) -> None:
    import cv2  # noqa: PLC0415

    cv2.putText(picture, text, (x, baseline), cv2.FONT_HERSHEY_SIMPLEX, 0.5, _TEXT, 1, cv2.LINE_AA)


def _draw_bars(area: np.ndarray, policy: np.ndarray, chosen: int | None) -> None:
    """Draw one column for each action, filled from below up to its probability."""
    height, width = area.shape[:2]
    gap = 2 if width >= 6 * len(policy) else 0
    edges = np.linspace(0, width + gap, len(policy) + 1).astype(int)
    for i, (begin, end) in enumerate(itertools.pairwise(edges.tolist())):
        full = round(height * float(np.clip(policy[i], 0, 1)))
        area[:, begin : end - gap] = _DIM
        area[height - full :, begin : end - gap] = _CHOSEN if i == chosen else _BAR
