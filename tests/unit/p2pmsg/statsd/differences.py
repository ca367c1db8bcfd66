"""Where the default dialect differs from other servers: real cases by name, with the reason.

The other servers' reading is there under the name of their dialect, and is tested too.
"""

REASONS = {
    "a tag is kept as it was sent, `#` and all": (
        "exporter.Test.datadog_tag_extension_with_sampling",
        "exporter.Test.distribution_with_sampling",
        "exporter.TestDisableParsingInfluxdb.datadog_tag_extension_with_sampling",
        "exporter.TestDisableParsingSignalfx."
        "datadog_tag_extension_with_in_all_keys_as_sent_by_datadog_php_client_",
        "exporter.TestDisableParsingLibrato."
        "datadog_tag_extension_with_in_all_keys_as_sent_by_datadog_php_client_",
    ),
    "DogStatsD 1.1 lets every numeric type pack values, counters and gauges too": (
        "exporter.Test.datadog_gauge_with_invalid_extended_aggregation_values",
        "exporter.Test.datadog_counter_with_invalid_extended_aggregation_values",
        "exporter.Test.SignalFX_counter_with_invalid_Datadog_style_extended_aggregation_values",
    ),
    "a rate that is none makes the line bad: counting it as 1 would be wrong by a factor": (
        "exporter.Test.illegal_sampling_factor",
        "exporter.Test.zero_sampling_factor",
        "telegraf.bad_rate_ignored",
    ),
    "a timestamp that is none makes the line bad: its value belongs to a time nobody knows": (
        "exporter.Test.dogstatsd_v1_3_timestamp_non_numeric_is_dropped",
    ),
    "names are kept as sent; an output that cannot take one cleans it": (
        "gostatsd.014",
        "gostatsd.015",
        "gostatsd.016",
        "vector.tagged_sanitized",
    ),
    "a section that no version of the protocol has makes the line bad": (
        "gostatsd.040",
        "gostatsd.041",
        "gostatsd.044",
        "gostatsd.045",
        "gostatsd.046",
        "gostatsd.047",
        "gostatsd.053",
        "gostatsd.055",
        "gostatsd.057",
        "gostatsd.059",
        "dogstatsd.unknown_ext",
    ),
    "types are written in lower case": ("brubeck.ok.04",),
}

DIFFERENCES = {case: reason for reason, cases in REASONS.items() for case in cases}
