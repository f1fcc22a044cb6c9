"""People label rows of runs, and with them judges are checked and their numbers corrected: `platform.review`.

agreement   how far judges and people agree, as functions of numbers
corrected   means that a judge gave, corrected by labels, as functions of numbers
records     which rows are labelled, and what people say of them
judges      a run's rows as its judge scored them, and what a judge is
labels      reading labels, blind
estimates   corrected means and differences, and verdicts
remarks     what the reports of runs say of the labels
table_file  labels as a CSV file
watches     what is stored of scorers that judge answers as they come; watching judges them
service     `platform.review`; watch_service is its `watches`
"""

from modelyard.lazy import defer_modules

defer_modules(
    __name__,
    "agreement",
    "corrected",
    "estimates",
    "judges",
    "labels",
    "records",
    "remarks",
    "service",
    "table_file",
    "watch_service",
    "watches",
    "watching",
)
