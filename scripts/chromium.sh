#!/usr/bin/env bash
# Chromium for tests/serve/test_dashboard_page.py: does nothing if there is one; Debian and Ubuntu, as root.
set -euo pipefail
for name in chromium chromium-browser google-chrome google-chrome-stable; do
  command -v "$name" > /dev/null && exit 0
done
apt-get update -q
apt-get install -y -q --no-install-recommends chromium
