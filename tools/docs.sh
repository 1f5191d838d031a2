#!/bin/sh
# Build the documentation site in build/site; a link that leads nowhere fails. The site needs neither a server nor the network.
#   PYTHON=/usr/bin/python3   the Python to build `.venv-docs` with
set -eu
cd "$(dirname "$0")/.."

python=${PYTHON:-/usr/bin/python3}
stamp=.venv-docs/.stamp
wanted=$({ pwd; "$python" --version; cat requirements/docs.txt; } | sha256sum)
if [ "$wanted" != "$(cat $stamp 2>/dev/null)" ]; then
    echo "docs: making .venv-docs"
    "$python" -m venv --clear .venv-docs
    .venv-docs/bin/python -m pip --disable-pip-version-check --no-input install --quiet \
        --require-hashes --only-binary :all: -r requirements/docs.txt
    echo "$wanted" >$stamp
fi

.venv/bin/python -m docs.make_picture
.venv/bin/python -m docs.make_screenshots
.venv/bin/python -m docs.make_site
# The first variable turns off an advertisement; mkdocs has the second for builds that are the same each time.
# Without --quiet: it drops the warnings before --strict counts them, and a broken link passes.
NO_MKDOCS_2_WARNING=1 SOURCE_DATE_EPOCH=0 .venv-docs/bin/mkdocs build --strict --config-file build/docs/mkdocs.yml
echo "docs: build/site/index.html"
