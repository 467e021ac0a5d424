# From the output of go test: which tests failed, and what each of them said, without the logs of its processes.
/^ *--- FAIL:/ { print; said = 0; inside = 1; next }
/^ *--- |^(ok|FAIL|PASS|===)/ { inside = 0; if (/^FAIL\t/) print; next }
/^panic:|DATA RACE|^fatal error:/ { print; said = 1; left = 30; inside = 1; next }
inside && /_test\.go:[0-9]+: / { said = !/remains_test\.go|the cluster used/; left = 15 }
inside && said && left > 0 { print; left-- }
