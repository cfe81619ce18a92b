"""What Tables 2 to 4 of Unbiased Evaluation print, in percent: R@1, R@2, R@4, R@8, R@16 and NMI, row by row."""

from __future__ import annotations

CUB = {  # Inception-BN, ResNet-50 (DREML: ResNet-18)
    "Triplet, semi-hard": ("50.9 63.3 74.8 84.3 91.1 61.1", "48.2 60.9 72.1 82.1 89.6 60.0"),
    "Lifted structure": ("51.7 63.2 74.6 83.8 90.6 60.9", "50.0 62.8 74.0 83.3 90.3 60.5"),
    "N-pairs": ("53.7 65.9 76.4 85.2 91.9 63.6", "56.1 68.2 78.8 87.4 92.9 65.5"),
    "Structured clustering": ("56.4 67.8 78.2 86.5 92.2 64.0", "- - - - - -"),
    "Margin": ("51.3 63.2 74.3 83.4 90.4 61.1", "59.6 71.0 81.0 88.2 93.1 67.3"),
    "Angular": ("53.2 66.2 76.4 85.5 91.5 62.8", "59.1 71.6 81.2 88.2 93.2 66.3"),
    "Prototype": ("47.8 60.9 73.0 83.3 90.6 60.7", "54.4 67.2 78.0 86.2 92.6 64.8"),
    "Proxy-Triplet": ("50.5 62.4 73.4 82.6 89.5 59.6", "53.1 65.3 76.1 84.5 90.8 62.9"),
    "Proxy-NCA": ("54.6 66.5 77.0 85.7 91.7 63.2", "58.1 70.0 79.1 86.3 91.8 64.1"),
    "Proxy-Softmax": ("58.3 70.4 80.5 88.6 93.4 64.0", "63.5 74.3 82.6 89.7 94.1 69.5"),
    "Ranked list": ("51.4 64.0 74.5 84.2 90.1 61.8", "50.2 62.7 73.6 83.1 89.6 58.5"),
    "DREML": ("55.4 67.0 77.1 85.6 91.1 61.0", "59.0 71.0 80.5 87.5 92.7 63.2"),
}
CARS = {
    "Triplet, semi-hard": "60.94 72.93 82.95 89.57 94.08 57.55",
    "Lifted structure": "65.29 75.75 83.95 89.87 94.07 61.00",
    "N-pairs": "71.18 80.68 87.47 92.36 95.55 63.68",
    "Structured clustering": "73.26 82.41 88.8 93.37 96.21 64.84",
    "Margin": "70.38 79.84 87.02 92.18 95.51 61.32",
    "Angular": "68.86 78.92 86.35 91.18 94.65 59.75",
    "Prototype": "59.49 71.86 82.03 89.45 94.31 58.44",
    "Proxy-Triplet": "65.34 76.01 84.53 90.96 94.92 60.85",
    "Proxy-NCA": "71.90 81.68 87.94 92.29 95.82 62.45",
    "Proxy-Softmax": "76.98 85.33 90.83 94.88 97.36 61.34",
    "Ranked list": "69.83 79.66 87.00 92.19 95.68 62.28",
    "DREML": "75.93 84.44 90.00 94.11 96.85 61.23",
}
SOP = {
    "N-pairs": "61.24 67.18 72.36 77.02 81.27 67.31",
    "Structured clustering": "64.27 69.65 74.33 78.58 82.41 86.75",
    "Margin": "67.63 73.20 77.98 82.11 85.54 87.68",
    "Angular": "68.97 74.29 78.75 82.60 85.99 87.55",
    "Prototype": "61.82 67.76 73.28 77.94 82.18 85.76",
    "Proxy-Triplet": "61.41 67.15 72.31 77.00 81.31 86.91",
    "Proxy-NCA": "73.56 78.42 82.39 85.56 88.21 88.93",
    "Proxy-Softmax": "74.30 80.13 82.41 87.62 89.93 89.10",
}
REPORTED = {  # R@1 that the methods' own papers report
    "cub": {
        "Triplet, semi-hard": "42.6",
        "Lifted structure": "43.6",
        "N-pairs": "45.4",
        "Structured clustering": "48.2",
        "Margin": "63.6",
        "Angular": "53.6",
        "Proxy-NCA": "49.2",
        "Proxy-Softmax": "55.3",
        "Ranked list": "57.4",
        "DREML": "58.9",
    },
    "cars196": {
        "Triplet, semi-hard": "51.54",
        "Lifted structure": "49.20",
        "N-pairs": "71.12",
        "Structured clustering": "58.10",
        "Margin": "79.60",
        "Angular": "71.30",
        "Proxy-Triplet": "55.90",
        "Proxy-NCA": "73.22",
        "Proxy-Softmax": "81.70",
        "Ranked list": "74.00",
        "DREML": "84.20",
    },
    "sop": {
        "N-pairs": "67.7",
        "Structured clustering": "67.0",
        "Margin": "72.7",
        "Angular": "70.9",
        "Proxy-NCA": "73.7",
        "Proxy-Softmax": "73.8",
    },
}
