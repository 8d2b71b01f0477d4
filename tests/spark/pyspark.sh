# Sourced by setup.sh and lake.sh, which set `root`: how a Python with PySpark is made.

install_pyspark() { # install_pyspark KIND-NAME: requirements/KIND-NAME.txt, in .cache/spark/NAME
  local wanted=$root/requirements/$1.txt venv=$root/.cache/spark/${1#*-} sum
  sum=$(cat "$wanted" "$root/tests/spark/pyspark.sh" | cksum)
  [ "$(cat "$venv/.made-from" 2>/dev/null)" = "$sum" ] && return
  echo "spark: the PySpark of $1 into $venv"
  rm -f "$venv/.made-from" "$venv/.archived-from"
  [ -x "$venv/bin/python" ] || "$root/.venv/bin/python" -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --requirement "$wanted" \
    --config-settings="--build-option=--compression=stored" # a wheel of PySpark is made to be unpacked at once
  # Spark has its Pythons import PySpark from archives of sources, half a second each to compile, and
  # where they are not, from the package beside them, which pip has compiled.
  rm -f "$venv"/lib/python*/site-packages/pyspark/python/lib/*.zip
  echo "$sum" >"$venv/.made-from"
}
