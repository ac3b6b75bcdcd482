"""Tables in every form, beside the paper's numbers."""

import csv
import math
from dataclasses import replace

import numpy as np
import pytest
from lab.test_tables import OTHER, SCORES, record, table
from matplotlib.backends.backend_agg import FigureCanvasAgg

from softperm.lab import report
from softperm.lab.recipes import quoted
from softperm.lab.report import details, latex, markdown, shown, training_curves, write_report
from softperm.lab.tables import cells_of

RECORDS = [*table(SCORES), *table(OTHER, "pi-gnn-d")]


def test_the_papers_numbers_stand_below_ours_and_are_marked():
    text = markdown(cells_of(RECORDS), "A table")
    ours = f"{100 * SCORES.mean():.1f} ± {100 * SCORES.mean(1).std():.1f}"
    assert f"| π-GNN | {ours} |\n| π-GNN, paper (quoted) | 86.1 ± 8.4 |" in text
    assert "| π-GNN-d, paper (quoted) | 84.9 ± 5.7 |" in text


def test_one_run_has_no_deviation():
    once = [replace(r, run=replace(r.run, folds=1)) for r in table(SCORES[:1, :1])]
    (cell,) = cells_of(once)
    (line,) = details([cell])
    assert shown(cell) == f"{100 * SCORES[0, 0]:.1f}"
    assert line["std"] == line["standard error"] == ""


def test_errors_have_a_unit():
    (cell,) = cells_of(table(SCORES))
    energy = replace(cell, dataset="QM9-u0", metric="mae")
    names = [c.metric_name for c in (cell, energy, replace(energy, dataset="mine-u0"))]
    assert names == ["accuracy, %", "mae, Hartree", "mae"]


def test_no_chance_is_said_to_be_zero():
    far = cells_of([*table(SCORES), *table(SCORES - 0.3 - 1e-4 * OTHER, "pi-gnn-d")])
    (line,) = report.tests(far)
    assert (line["p, corrected t"], line["p, Wilcoxon"]) == ("< 0.001", "0.002")


def test_what_rounding_leaves_of_a_difference_is_none():
    even = SCORES - SCORES.mean() + 0.861
    gaps = [details(cells_of(table(even + by)))[0]["difference"] for by in (1e-15, -1e-15, -0.01)]
    assert gaps == ["+0", "+0", "-1"]


@pytest.mark.parametrize(
    ("dataset", "model", "shown"),
    [
        ("MUTAG", "pi-gnn", "86.1 ± 8.4"),
        ("COLLAB", "ecc", "OOR"),
        ("QM9-u0", "pi-gnn-d", "0.021"),
        ("ogbg-molhiv", "pi-gnn", "79.1 ± 1.5"),
    ],
)
def test_numbers_are_quoted_as_printed(dataset, model, shown):
    assert str(quoted(dataset, model)) == shown


def test_what_the_paper_does_not_give_is_not_quoted():
    assert quoted("ENZYMES", "wl-kernel") is None
    assert quoted("my graphs", "pi-gnn") is None


def test_csv_keeps_every_fold_with_all_digits(tmp_path):
    made = write_report(RECORDS, tmp_path, "A table")
    rows = list(csv.DictReader(made["csv"].read_text().splitlines()))
    ours = [r for r in rows if r["model"] == "pi-gnn" and r["source"] == "measured"]
    np.testing.assert_array_equal([float(r["score"]) for r in ours], SCORES.mean(1))
    assert [r["score"] for r in rows if r["source"] == "quoted"] == ["0.861", "0.849"]


def test_the_page_needs_nothing_from_outside(tmp_path):
    page = write_report(RECORDS, tmp_path, "A & B")["html"].read_text()
    assert "A &amp; B" in page
    assert "corrected" in page
    for outside in ("src=", 'href="http', "@import", "<script", "<link"):
        assert outside not in page


def test_latex_takes_any_name():
    named = [replace(r, run=replace(r.run, dataset=r"a#b_c$ 50% {~^\}")) for r in table(SCORES)]
    text = latex(cells_of(named))
    assert r"a\#b\_c\$ 50\% \{\textasciitilde{}\textasciicircum{}\textbackslash{}\}" in text


def test_latex_escapes_what_it_must():
    text = latex(cells_of(RECORDS))
    assert r"$\pi$-GNN &" in text
    assert r"$\pm$" in text
    assert "±" not in text


def test_the_same_records_give_the_same_files(tmp_path):
    first = write_report(RECORDS, tmp_path / "a", "T")
    second = write_report(RECORDS, tmp_path / "b", "T")
    for form in ("markdown", "latex", "csv"):
        assert first[form].read_bytes() == second[form].read_bytes()


def test_no_records_are_an_error(tmp_path):
    with pytest.raises(ValueError, match="no records"):
        write_report([], tmp_path, "T")


def test_the_table_is_the_same_whatever_the_order_of_records(tmp_path):
    names = [("zoo", "pi-gnn"), ("MUTAG", "gin"), ("MUTAG", "pi-gnn+b"), ("MUTAG", "pi-gnn"),
             ("QM9-u0", "pi-gnn"), ("MUTAG", "pi-gnn+a"), ("NCI1", "pi-gnn")]  # fmt: skip
    made = []
    for dataset, model in names:
        for fold in range(2):
            one = record(fold, 0, 0.5)
            run = replace(one.run, dataset=dataset, model=model, folds=2)
            made.append(replace(one, run=run))
    tables = []
    for order in (made, made[::-1]):
        tables.append(write_report(order, tmp_path, "x")["markdown"].read_text())
    assert tables[0] == tables[1]
    lines = tables[0].splitlines()
    (head,) = (line for line in lines if line.startswith("|  |"))
    assert head == "|  | MUTAG | NCI1 | QM9-u0 | zoo |"
    systems = ["π-GNN", "π-GNN, a", "π-GNN, b", "GIN"]
    rows = [line.split("|")[1].strip() for line in lines if line.startswith("| ")]
    assert [name for name in rows if name in systems][:4] == systems


def test_tables_say_how_many_epochs_there_could_be_and_nothing_of_kernels():
    def told(records: list, epochs: int, best_epoch: int) -> str:
        changed = [
            replace(r, best_epoch=best_epoch, run=replace(r.run, configuration={"epochs": epochs}))
            for r in records
        ]
        return markdown(cells_of(changed), "A table")

    trained, kernel = table(SCORES), table(SCORES, "wl-kernel")
    runs = f"{len(SCORES)} × {SCORES.shape[1]}"
    assert f"| {runs} | 12 |" in told(trained, 12, 7)
    assert f"| {runs} |  |" in told(kernel, 1000, 0)


@pytest.mark.parametrize("systems", [1, 6, 7, 25, 40])
def test_curves_of_many_systems_leave_room_for_their_names(systems):
    curve = {"validation_loss": [1.0, 0.9, 0.8], "validation_score": [0.5, 0.6, math.nan]}
    names = [f"pi-gnn+a-name-as-long-as-{k}" for k in range(systems)]
    records = [replace(r, curve=curve) for name in names for r in table(SCORES, name)]
    figure = training_curves(cells_of(records))
    assert figure is not None
    FigureCanvasAgg(figure).draw()
    legend = figure.legends[0] if figure.legends else figure.axes[1].get_legend()
    assert legend is not None
    assert len(legend.get_texts()) == systems
    whole, box = figure.bbox, legend.get_window_extent()
    assert min(box.x0, box.y0, whole.width - box.x1, whole.height - box.y1) >= 0
    for axis in figure.axes:
        assert axis.get_window_extent().height > whole.height / 2
        assert axis.get_window_extent().width > whole.width / 4
    styles = {(line.get_color(), line.get_linestyle()) for line in figure.axes[0].get_lines()}
    assert len(styles) == systems


def test_losses_that_are_never_defined_leave_the_scores_curve():
    curve = {"validation_loss": [math.nan] * 2, "validation_score": [0.5, 0.6]}
    figure = training_curves(cells_of([replace(r, curve=curve) for r in table(SCORES)]))
    assert figure is not None
    assert [len(axis.get_lines()[0].get_xdata()) for axis in figure.axes] == [0, 2]


def test_runs_that_stopped_early_count_in_curves_as_long_as_they_lasted():
    short = {"validation_loss": [1.0, 2.0], "validation_score": [0.5, 0.5]}
    long = {"validation_loss": [3.0, 4.0, 5.0, 6.0], "validation_score": [0.5] * 4}
    first, *others = table(SCORES)
    records = [replace(first, curve=short), *(replace(r, curve=long) for r in others)]
    figure = training_curves(cells_of(records))
    assert figure is not None
    (line,) = figure.axes[0].get_lines()
    share = 1 / len(records)
    expected = [3 - 2 * share, 4 - 2 * share, 5, 6]
    np.testing.assert_allclose(np.asarray(line.get_ydata()), expected)


@pytest.mark.parametrize(("last", "scale"), [(0.1, "linear"), (1e-4, "log"), (0.0, "linear")])
def test_errors_that_fall_by_orders_of_magnitude_are_drawn_on_a_logarithmic_axis(last, scale):
    curve = {"validation_loss": [0.3, 0.2], "validation_score": [1.0, last]}
    made = [replace(r, curve=curve, metric="mae") for r in table(SCORES)]
    made = [replace(r, run=replace(r.run, dataset="QM9-u0")) for r in made]
    figure = training_curves(cells_of(made))
    assert figure is not None
    loss, error = figure.axes
    assert (loss.get_yscale(), error.get_yscale()) == ("linear", scale)
    assert error.get_ylabel() == "validation mae, Hartree"


def test_shares_are_drawn_in_per_cent():
    curve = {"validation_loss": [0.3, 0.2], "validation_score": [0.5, 0.75]}
    figure = training_curves(cells_of([replace(r, curve=curve) for r in table(SCORES)]))
    assert figure is not None
    assert figure.axes[1].get_ylabel() == "validation accuracy, %"
    np.testing.assert_allclose(np.asarray(figure.axes[1].get_lines()[0].get_ydata()), [50, 75])


CURVE = {name: [0.5, 0.25] for name in ("train_loss", "validation_loss", "validation_score")}


def named(dataset: str) -> list:
    """Records of a dataset with any name, with curves."""
    return [replace(r, run=replace(r.run, dataset=dataset), curve=CURVE) for r in table(SCORES)]


@pytest.mark.parametrize("name", ["cost_$5_vs_$6", "$\\frac{", "_hidden", "x^{2", "100%"])
def test_a_name_is_never_a_formula(name, tmp_path):
    write_report(named(name), tmp_path, "A table")
    assert (tmp_path / f"curves-{name}.png").stat().st_size > 1000


def test_a_failed_picture_does_not_cost_the_report(tmp_path, monkeypatch):
    def fail(cells):
        raise RuntimeError("no font")

    monkeypatch.setattr(report, "training_curves", fail)
    with pytest.warns(UserWarning, match="curves of MUTAG could not be drawn .RuntimeError: no f"):
        write_report(RECORDS, tmp_path, "A table")
    assert "π-GNN" in (tmp_path / "report.html").read_text()


def test_markdown_escapes_separators_and_tags():
    text = markdown(cells_of(named("a|b<script>")), "<b>bold</b>", ["<i>x"])
    assert "<script>" not in text
    assert "<b>" not in text
    assert "<i>" not in text
    (head,) = [line for line in text.splitlines() if line.startswith("|  |")]
    assert head == "|  | a\\|b&lt;script> |"


def test_names_in_tables_are_no_formulas_of_spreadsheets(tmp_path):
    write_report(named("=cmd()"), tmp_path, "A table")
    rows = list(csv.DictReader((tmp_path / "table.csv").read_text().splitlines()))
    assert {row["dataset"] for row in rows} == {"'=cmd()"}


def judged(model: str = "pi-gnn", **changes) -> list:
    """Two folds of ten graphs each, eight of class 0, in two runs."""
    tables = [[[7, 1], [1, 1]], [[8, 0], [2, 0]]]
    made = []
    for fold, confusion in enumerate(tables):
        for seed in (1, 2):
            one = record(fold, seed, sum(np.diag(confusion)) / 10, model)
            run = replace(one.run, dataset="mine", folds=2)
            made.append(replace(one, run=run, confusion=confusion, roc_auc=0.75, **changes))
    return made


def test_classifications_have_a_row_of_the_majority_class_and_balanced_accuracy():
    rows = report.classifications(cells_of(judged()))
    assert [list(row.values()) for row in rows] == [
        ["mine", "π-GNN", "80.0 ± 0.0", "59.4 ± 9.4", "75.0 ± 0.0"],
        ["mine", "Majority class", "80.0 ± 0.0", "50.0", "50.0"],
    ]
    assert report.grid(cells_of(judged()))[-1] == {"": "Majority class", "mine": "80.0 ± 0.0"}


def test_a_confusion_matrix_has_the_users_names_of_classes(tmp_path):
    (cell,) = cells_of(judged())
    assert report.confusion(cell, ["ring", "clique"]) == [
        {"true class": "ring", "as ring": "30", "as clique": "2"},
        {"true class": "clique", "as ring": "6", "as clique": "2"},
    ]
    (counts,) = report.class_counts([cell], {"mine": ["ring", "clique"]})
    assert counts["graphs of each class"] == "ring: 16, clique: 4"
    (unnamed,) = report.class_counts([cell], {"mine": ["of another number"]})
    assert unnamed["graphs of each class"] == "0: 16, 1: 4"
    page = write_report(judged(), tmp_path, "T", (), {"mine": ["ring", "clique"]})["html"]
    assert "as clique" in page.read_text()


def test_records_without_a_confusion_matrix_still_make_their_tables(tmp_path):
    cells = cells_of(RECORDS)
    assert report.classifications(cells) == report.class_counts(cells) == []
    assert report.confusion(cells[0]) == report.sharpness(cells) == report.chosen(cells) == []
    assert "Majority" not in write_report(RECORDS, tmp_path, "T")["markdown"].read_text()
    mixed = [*judged(), *(replace(r, confusion=None) for r in judged("pi-gnn-d"))]
    assert len(report.classifications(cells_of(mixed))) == 2


def test_the_configuration_that_each_fold_chose_is_told():
    final = [
        replace(r, run=replace(r.run, configuration={"hidden": 32, "head": head}))
        for r, head in zip(judged(), ["mlp", "mlp", "forest", "forest"], strict=True)
    ]
    tried = [
        replace(r, run=replace(r.run, stage="selection", configuration={"hidden": 32, "head": h}))
        for r in judged()[::2]
        for h in ("mlp", "forest")
    ]
    rows = report.chosen(cells_of([*final, *tried]))
    assert [(row["configuration"], row["folds"]) for row in rows] == [
        ("head mlp", "0"),
        ("head forest", "1"),
    ]
    assert report.chosen(cells_of(final)) == [], "nothing was chosen"


def test_uniform_permutations_are_warned_of(tmp_path):
    measured = {"row_entropy": 0.5, "first_component": 0.4, "used_latent_vertices": 3.0}
    sharp = judged(sharpness=measured)
    flat = judged("pi-gnn-d", sharpness={**measured, "row_entropy": 0.995})
    cells = cells_of([*sharp, *flat])
    assert [row["row entropy"] for row in report.sharpness(cells)] == ["0.500", "0.995"]
    (warning,) = report.uniform_permutations(cells)
    assert warning.startswith("π-GNN-d on mine")
    page = write_report([*sharp, *flat], tmp_path, "T")["html"].read_text()
    assert "Warning: π-GNN-d on mine: the soft permutations are nearly uniform" in page


def test_columns_of_the_paper_are_left_out_for_graphs_it_does_not_have():
    assert not {"paper (quoted)", "difference"} & set(details(cells_of(judged()))[0])
    assert details(cells_of(RECORDS))[0]["paper (quoted)"]
