# make demo   a simulated fleet that breaks and heals before your eyes, on the same fresh machine as make test; Ctrl-C ends
#             it. ARGS="--faults none", and what else `stoker demo --help` says
# make test   everything that needs no root, on a fresh machine with python3 >= 3.11, venv, make and git
# make hosts  the real test hosts: needs root and systemd-container (and debootstrap, iproute2, openssh-client,
#             openssh-server, tcsh, fish, busybox)
# make show M=NAME  the tests with that pytest marker, root ones included
# make simulate N=1000  that many seeded runs of the daemon over simulated hosts on virtual time, kept in
#             tests/simulation/RESULT.txt; make simulate SEED=7 TRACE=file  one of them again, with every command it sent
# make strays N=10000  that many seeded runs with random mixtures of strays and their look-alikes, kept in
#             tests/simulation/STRAYS_RESULT.txt; make strays SEED=7 TRACE=file  one of them again
# make fuzz   200,000 damaged answers for the parsers, the figures kept in tests/probes/FUZZ_RESULT.txt; N=… gives another number
# make crash-points  the daemon killed at every point of five scenarios on real test hosts; make hosts does one of each kind
# make bench  the figures; needs what make hosts needs
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.stamp

.PHONY: demo test hosts hosts-main hosts-fleet hosts-strays hosts-long hosts-timed can-boot show simulate strays fuzz crash-points bench lint lock

$(STAMP): requirements.txt pyproject.toml
	python3 -c 'import sys; sys.exit("python3 is older than 3.11" if sys.version_info < (3, 11) else 0)'
	$(PY) -m pip --version >/dev/null 2>&1 || python3 -m venv --clear $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.txt
	echo '$(CURDIR)' > "$$($(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/stoker.pth"
	printf '#!%s\nfrom api.cli import main\nmain()\n' '$(CURDIR)/$(PY)' > $(VENV)/bin/stoker
	chmod 755 $(VENV)/bin/stoker
	touch $@

demo: $(STAMP)
	@$(VENV)/bin/stoker demo $(ARGS)

test: $(STAMP)
	$(PY) -m pytest -q -m "not hosts and not bench"

# Five parts: .ci/run does two at once, since most of each is waiting, and the timed one alone.
hosts: hosts-main hosts-fleet hosts-strays hosts-long hosts-timed
LONG := $(addprefix tests/hosts/test_,crash_points.py demo_faults.py)
TIMED := $(addprefix tests/hosts/test_,demo_bare_root.py watch.py cut_off.py)

hosts-main: can-boot $(STAMP)
	$(PY) -m pytest -q --durations=12 -m "hosts and not fleet and not strays"

hosts-fleet: can-boot $(STAMP)
	$(PY) -m pytest -q --durations=12 -m "hosts and fleet and not strays" $(addprefix --ignore=,$(LONG) $(TIMED))

hosts-strays: can-boot $(STAMP)
	$(PY) -m pytest -q --durations=12 -m "hosts and strays"

hosts-long: can-boot $(STAMP)
	$(PY) -m pytest -q --durations=12 $(LONG)

hosts-timed: can-boot $(STAMP)
	$(PY) -m pytest -q --durations=12 $(TIMED)

# One line: `make` itself says it.
can-boot:
	@:$(if $(shell test "$$(id -u)" = 0 && for tool in systemd-nspawn debootstrap ip ssh-keygen unshare sshd tcsh fish \
	  busybox; do command -v $$tool >/dev/null || exit 1; done; test $$? = 0 && echo yes),,$(error \
	  make $(firstword $(MAKECMDGOALS)) needs root and the packages systemd-container, debootstrap, iproute2, openssh-client, openssh-server, tcsh, fish and busybox))

show: $(STAMP)
	@test -n "$(M)" || { echo "make show M=NAME: name a pytest marker, as main_job" >&2; exit 1; }
	$(PY) -m pytest -q -m "$(M)"

simulate: $(STAMP)
	$(PY) -m tests.simulation.many $(if $(SEED),--only $(SEED) $(if $(TRACE),--trace $(TRACE)),\
	  --seeds $(or $(N),1000) $(if $(FIRST),--first $(FIRST)) --result tests/simulation/RESULT.txt)

strays: $(STAMP)
	$(PY) -m tests.simulation.strays.many $(if $(SEED),--only $(SEED) $(if $(TRACE),--trace $(TRACE)),\
	  --seeds $(or $(N),1000) $(if $(FIRST),--first $(FIRST)) --result tests/simulation/STRAYS_RESULT.txt)

fuzz: $(STAMP)
	$(PY) -m tests.probes.fuzz $(if $(N),--inputs $(N)) $(if $(SEED),--seed $(SEED)) --result tests/probes/FUZZ_RESULT.txt

crash-points: can-boot $(STAMP)
	CRASH_POINTS=all $(PY) -m pytest -q tests/hosts/test_crash_points.py

bench: can-boot $(STAMP)
	$(PY) -m pytest -q -s -m bench

lint: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

lock:
	uv pip compile pyproject.toml --extra dev --generate-hashes --no-emit-index-url --no-header --universal \
	  --python-version 3.11 -o requirements.txt
