"""Reference pages say what the code says."""

import pytest

from tests.reference_pages import PAGES, REFERENCE


@pytest.mark.parametrize("name", PAGES)
def test_a_written_page_is_up_to_date(name):
    assert (REFERENCE / name).read_text(encoding="utf-8") == PAGES[name](), "run `make docs` and commit the result"
