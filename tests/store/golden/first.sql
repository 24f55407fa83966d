-- A store as the first issue's Stoker (revision dd661e4) wrote it: schema version 1, no alembic_version.
BEGIN TRANSACTION;
CREATE TABLE conditions (
	uid TEXT NOT NULL, 
	type TEXT NOT NULL, 
	status TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	message TEXT NOT NULL, 
	observed_generation INTEGER NOT NULL, 
	last_transition_time TEXT NOT NULL, 
	PRIMARY KEY (uid, type), 
	FOREIGN KEY(uid) REFERENCES objects (uid) ON DELETE CASCADE
);
INSERT INTO "conditions" VALUES('00000000-0000-4000-8000-000000000006','Ready','True','OK','',2,'2026-05-04T12:00:21.000000+00:00');
INSERT INTO "conditions" VALUES('00000000-0000-4000-8000-000000000006','Drifted','False','OK','',2,'2026-05-04T12:00:21.000000+00:00');
INSERT INTO "conditions" VALUES('00000000-0000-4000-8000-000000000004','Reachable','True','OK','',1,'2026-05-04T12:00:21.000000+00:00');
CREATE TABLE corrections (
	id INTEGER NOT NULL, 
	instance_key TEXT NOT NULL, 
	host TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	at TEXT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "corrections" VALUES(1,'stoker-k26.server.service','gpu-a','unit-restart','LaunchChanged','2026-05-04T12:00:50.000000+00:00');
CREATE TABLE counters (
	name TEXT NOT NULL, 
	value INTEGER NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO "counters" VALUES('resource_version',10);
CREATE TABLE events (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	kind TEXT NOT NULL, 
	name TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	message TEXT NOT NULL, 
	severity TEXT NOT NULL, 
	evidence TEXT NOT NULL, 
	action TEXT NOT NULL, 
	result TEXT NOT NULL, 
	count INTEGER NOT NULL, 
	first_seen TEXT NOT NULL, 
	last_seen TEXT NOT NULL
);
INSERT INTO "events" VALUES(1,'Host','gpu-a','Created','created by ann: generation 1','Normal','','put','created',1,'2026-05-04T12:00:01.000000+00:00','2026-05-04T12:00:01.000000+00:00');
INSERT INTO "events" VALUES(2,'Host','gpu-b','Created','created by ann: generation 1','Normal','','put','created',1,'2026-05-04T12:00:02.000000+00:00','2026-05-04T12:00:02.000000+00:00');
INSERT INTO "events" VALUES(3,'ServingSpec','k26','Created','created by ann: generation 1','Normal','','put','created',1,'2026-05-04T12:00:04.000000+00:00','2026-05-04T12:00:04.000000+00:00');
INSERT INTO "events" VALUES(4,'ServingSpec','k26','Configured','configured by bob: generation 2','Normal','','put','configured',1,'2026-05-04T12:00:05.000000+00:00','2026-05-04T12:00:05.000000+00:00');
INSERT INTO "events" VALUES(5,'ServingSpec','old','Created','created by ann: generation 1','Normal','','put','created',1,'2026-05-04T12:00:30.000000+00:00','2026-05-04T12:00:30.000000+00:00');
INSERT INTO "events" VALUES(6,'ServingSpec','old','Terminating','deleted by bob','Normal','','delete','',1,'2026-05-04T12:00:31.000000+00:00','2026-05-04T12:00:31.000000+00:00');
INSERT INTO "events" VALUES(7,'ServingSpec','old','Abandoned','deletion ended; left behind: gpu-b, stoker-old.server.service','Warning','','delete','gone',1,'2026-05-04T12:00:32.000000+00:00','2026-05-04T12:00:32.000000+00:00');
INSERT INTO "events" VALUES(8,'ServingSpec','ending','Created','created by ann: generation 1','Normal','','put','created',1,'2026-05-04T12:00:33.000000+00:00','2026-05-04T12:00:33.000000+00:00');
INSERT INTO "events" VALUES(9,'ServingSpec','ending','Terminating','deleted by ann','Normal','','delete','',1,'2026-05-04T12:00:34.000000+00:00','2026-05-04T12:00:34.000000+00:00');
INSERT INTO "events" VALUES(10,'ServingSpec','old','Created','created by eve: generation 1','Normal','','put','created',1,'2026-05-04T12:00:35.000000+00:00','2026-05-04T12:00:35.000000+00:00');
INSERT INTO "events" VALUES(11,'Host','gpu-a','OK','gate waits','Warning','line 2
line é','','',3,'2026-05-04T12:00:40.000000+00:00','2026-05-04T12:00:42.000000+00:00');
CREATE TABLE history (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	kind TEXT NOT NULL, 
	name TEXT NOT NULL, 
	uid TEXT NOT NULL, 
	generation INTEGER NOT NULL, 
	spec TEXT NOT NULL, 
	actor TEXT NOT NULL, 
	at TEXT NOT NULL, 
	UNIQUE (uid, generation)
);
INSERT INTO "history" VALUES(1,'Host','gpu-a','00000000-0000-4000-8000-000000000004',1,'{"mode":"enforce","ssh":{"address":"192.0.2.10","user":"root"}}','ann','2026-05-04T12:00:01.000000+00:00');
INSERT INTO "history" VALUES(2,'Host','gpu-b','00000000-0000-4000-8000-000000000005',1,'{"ssh":{"address":"192.0.2.11"}}','ann','2026-05-04T12:00:02.000000+00:00');
INSERT INTO "history" VALUES(3,'ServingSpec','k26','00000000-0000-4000-8000-000000000006',1,'{"engine":{"name":"sglang","python":"/opt/venv/bin/python"},"env":{"X":"gr\u00f6\u00dfe \u2028 ''q''; --"},"model":{"path":"/models/K","servedName":"k"},"placement":{"gpus":[0,1],"host":"gpu-a"},"port":30001}','ann','2026-05-04T12:00:04.000000+00:00');
INSERT INTO "history" VALUES(4,'ServingSpec','k26','00000000-0000-4000-8000-000000000006',2,'{"engine":{"name":"sglang","python":"/opt/venv/bin/python"},"env":{"X":"gr\u00f6\u00dfe \u2028 ''q''; --"},"model":{"path":"/models/K","servedName":"k"},"placement":{"gpus":[0,1],"host":"gpu-a"},"port":30002}','bob','2026-05-04T12:00:05.000000+00:00');
INSERT INTO "history" VALUES(5,'ServingSpec','old','00000000-0000-4000-8000-000000000007',1,'{"engine":{"name":"sglang","python":"/opt/venv/bin/python"},"env":{"X":"gr\u00f6\u00dfe \u2028 ''q''; --"},"model":{"path":"/models/K","servedName":"k"},"placement":{"gpus":[0,1],"host":"gpu-a"},"port":30001}','ann','2026-05-04T12:00:30.000000+00:00');
INSERT INTO "history" VALUES(6,'ServingSpec','ending','00000000-0000-4000-8000-000000000008',1,'{"engine":{"name":"sglang","python":"/opt/venv/bin/python"},"env":{"X":"gr\u00f6\u00dfe \u2028 ''q''; --"},"model":{"path":"/models/K","servedName":"k"},"placement":{"gpus":[0,1],"host":"gpu-a"},"port":30001}','ann','2026-05-04T12:00:33.000000+00:00');
INSERT INTO "history" VALUES(7,'ServingSpec','old','00000000-0000-4000-8000-000000000009',1,'{"engine":{"name":"sglang","python":"/opt/venv/bin/python"},"env":{"X":"gr\u00f6\u00dfe \u2028 ''q''; --"},"model":{"path":"/models/K","servedName":"k"},"placement":{"gpus":[0,1],"host":"gpu-a"},"port":30002}','eve','2026-05-04T12:00:35.000000+00:00');
CREATE TABLE identities (
	uid TEXT NOT NULL, 
	machine_id TEXT NOT NULL, 
	container TEXT NOT NULL, 
	gpu_uuids TEXT NOT NULL, 
	first_seen TEXT NOT NULL, 
	PRIMARY KEY (uid), 
	FOREIGN KEY(uid) REFERENCES objects (uid) ON DELETE CASCADE
);
INSERT INTO "identities" VALUES('00000000-0000-4000-8000-000000000004','aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa','','["GPU-1","GPU-2"]','2026-05-04T12:00:03.000000+00:00');
INSERT INTO "identities" VALUES('00000000-0000-4000-8000-000000000005','bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb','129','[]','2026-05-04T12:00:03.000000+00:00');
CREATE TABLE instances (
	spec_uid TEXT NOT NULL, 
	role TEXT NOT NULL, 
	host TEXT NOT NULL, 
	unit TEXT NOT NULL, 
	path TEXT NOT NULL, 
	gpus TEXT NOT NULL, 
	written_sha256 TEXT NOT NULL, 
	written_launch TEXT NOT NULL, 
	ready_invocation_id TEXT NOT NULL, 
	ready_generation INTEGER NOT NULL, 
	ready_at TEXT, 
	loaded_generation INTEGER NOT NULL, 
	extra TEXT NOT NULL, 
	PRIMARY KEY (spec_uid, role, host), 
	FOREIGN KEY(spec_uid) REFERENCES objects (uid) ON DELETE CASCADE
);
INSERT INTO "instances" VALUES('00000000-0000-4000-8000-000000000006','server','gpu-a','stoker-k26.server.service','/etc/systemd/system/stoker-k26.server.service','[[0,"GPU-1"],[1,"GPU-2"]]','cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc','v1:abc','dddddddddddddddddddddddddddddddd',2,'2026-05-04T12:00:20.000000+00:00',2,'{"started":"v1:abc","state":{"ready":"True","unit":"stoker-k26.server.service"}}');
CREATE TABLE meta (
	"key" TEXT NOT NULL, 
	value TEXT NOT NULL, 
	PRIMARY KEY ("key")
);
INSERT INTO "meta" VALUES('schema_version','1');
INSERT INTO "meta" VALUES('store_uid','00000000-0000-4000-8000-000000000001');
CREATE TABLE objects (
	uid TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	name TEXT NOT NULL, 
	generation INTEGER NOT NULL, 
	resource_version INTEGER NOT NULL, 
	labels TEXT NOT NULL, 
	spec TEXT NOT NULL, 
	created_at TEXT NOT NULL, 
	updated_at TEXT NOT NULL, 
	deleted_at TEXT, 
	PRIMARY KEY (uid), 
	UNIQUE (kind, name), 
	CHECK (kind IN ('Host', 'ServingSpec'))
);
INSERT INTO "objects" VALUES('00000000-0000-4000-8000-000000000004','Host','gpu-a',1,1,'{"rack":"r1"}','{"mode":"enforce","ssh":{"address":"192.0.2.10","user":"root"}}','2026-05-04T12:00:01.000000+00:00','2026-05-04T12:00:01.000000+00:00',NULL);
INSERT INTO "objects" VALUES('00000000-0000-4000-8000-000000000005','Host','gpu-b',1,2,'{}','{"ssh":{"address":"192.0.2.11"}}','2026-05-04T12:00:02.000000+00:00','2026-05-04T12:00:02.000000+00:00',NULL);
INSERT INTO "objects" VALUES('00000000-0000-4000-8000-000000000006','ServingSpec','k26',2,4,'{"team":"x"}','{"engine":{"name":"sglang","python":"/opt/venv/bin/python"},"env":{"X":"gr\u00f6\u00dfe \u2028 ''q''; --"},"model":{"path":"/models/K","servedName":"k"},"placement":{"gpus":[0,1],"host":"gpu-a"},"port":30002}','2026-05-04T12:00:04.000000+00:00','2026-05-04T12:00:05.000000+00:00',NULL);
INSERT INTO "objects" VALUES('00000000-0000-4000-8000-000000000008','ServingSpec','ending',1,9,'{}','{"engine":{"name":"sglang","python":"/opt/venv/bin/python"},"env":{"X":"gr\u00f6\u00dfe \u2028 ''q''; --"},"model":{"path":"/models/K","servedName":"k"},"placement":{"gpus":[0,1],"host":"gpu-a"},"port":30001}','2026-05-04T12:00:33.000000+00:00','2026-05-04T12:00:34.000000+00:00','2026-05-04T12:00:34.000000+00:00');
INSERT INTO "objects" VALUES('00000000-0000-4000-8000-000000000009','ServingSpec','old',1,10,'{}','{"engine":{"name":"sglang","python":"/opt/venv/bin/python"},"env":{"X":"gr\u00f6\u00dfe \u2028 ''q''; --"},"model":{"path":"/models/K","servedName":"k"},"placement":{"gpus":[0,1],"host":"gpu-a"},"port":30002}','2026-05-04T12:00:35.000000+00:00','2026-05-04T12:00:35.000000+00:00',NULL);
CREATE TABLE pause (
	id INTEGER NOT NULL CHECK (id = 1), 
	"by" TEXT NOT NULL, 
	since TEXT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "pause" VALUES(1,'ann','2026-05-04T12:01:00.000000+00:00');
CREATE TABLE places (
	uid TEXT NOT NULL, 
	host TEXT NOT NULL, 
	unit TEXT NOT NULL, 
	PRIMARY KEY (uid, host, unit)
);
INSERT INTO "places" VALUES('00000000-0000-4000-8000-000000000006','gpu-a','stoker-k26.server.service');
INSERT INTO "places" VALUES('00000000-0000-4000-8000-000000000007','gpu-b','stoker-old.server.service');
CREATE TABLE runs (
	epoch INTEGER NOT NULL, 
	run TEXT NOT NULL, 
	started_at TEXT NOT NULL, 
	PRIMARY KEY (epoch), 
	UNIQUE (run)
);
INSERT INTO "runs" VALUES(1,'00000000000040008000000000000002','2026-05-04T12:00:00.000000+00:00');
INSERT INTO "runs" VALUES(2,'00000000000040008000000000000003','2026-05-04T12:01:40.000000+00:00');
CREATE TABLE statuses (
	uid TEXT NOT NULL, 
	status TEXT NOT NULL, 
	updated_at TEXT, 
	PRIMARY KEY (uid), 
	FOREIGN KEY(uid) REFERENCES objects (uid) ON DELETE CASCADE
);
INSERT INTO "statuses" VALUES('00000000-0000-4000-8000-000000000006','{"instances":[],"observedGeneration":2}','2026-05-04T12:00:21.000000+00:00');
INSERT INTO "statuses" VALUES('00000000-0000-4000-8000-000000000004','{"mode":"enforce","plan":[]}','2026-05-04T12:00:21.000000+00:00');
CREATE TABLE tombstones (
	uid TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	name TEXT NOT NULL, 
	generation INTEGER NOT NULL, 
	spec TEXT NOT NULL, 
	leftovers TEXT NOT NULL, 
	abandoned INTEGER NOT NULL, 
	at TEXT NOT NULL, 
	PRIMARY KEY (uid)
);
INSERT INTO "tombstones" VALUES('00000000-0000-4000-8000-000000000007','ServingSpec','old',1,'{"engine":{"name":"sglang","python":"/opt/venv/bin/python"},"env":{"X":"gr\u00f6\u00dfe \u2028 ''q''; --"},"model":{"path":"/models/K","servedName":"k"},"placement":{"gpus":[0,1],"host":"gpu-a"},"port":30001}','{"hosts":["gpu-b"],"units":["stoker-old.server.service"],"why":"unreachable"}',1,'2026-05-04T12:00:32.000000+00:00');
CREATE INDEX corrections_by_instance ON corrections (instance_key, at);
CREATE INDEX corrections_by_time ON corrections (at);
CREATE INDEX events_by_object ON events (kind, name, last_seen);
CREATE INDEX history_by_name ON history (kind, name);
CREATE INDEX places_by_host ON places (host);
CREATE INDEX identities_by_machine ON identities (machine_id);
CREATE INDEX instances_by_host ON instances (host);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('history',7);
INSERT INTO "sqlite_sequence" VALUES('events',11);
COMMIT;
