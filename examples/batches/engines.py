"""A table given to a mapper as it is, or by an engine."""

import pyarrow


def on(names, model, table, schema):
    """The mapper's table for this one. `schema` is that of the result, as Spark writes it."""
    return ENGINES[names[0]](model, table, schema) if names else model(table)


def ray(model, table, schema):
    import ray.data

    half = len(table) // 2
    parts = ray.data.from_arrow([table.slice(0, half), table.slice(half)])
    # An actor of a class would open the program once, too: mappers of a process that are alike are one.
    done = parts.map_batches(model, batch_format="pyarrow", batch_size=4)
    return pyarrow.concat_tables(ray.get(done.to_arrow_refs()))


def spark(model, table, schema):
    from pyspark.sql import SparkSession

    session = SparkSession.builder.master("local[2,4]").config("spark.driver.memory", "1g").getOrCreate()
    return session.createDataFrame(table).repartition(2).mapInArrow(model.over, schema).toArrow()


def daft(model, table, schema):
    import daft

    made = pyarrow.struct([field for field in model(table.slice(0, 0)).schema])

    @daft.cls
    class Step:
        def __init__(self, model):
            self.model = model

        @daft.method.batch(return_dtype=daft.DataType.from_arrow_type(made))
        def __call__(self, *columns: daft.Series):
            batch = pyarrow.table([column.to_arrow() for column in columns], names=table.column_names)
            return self.model(batch).to_struct_array().combine_chunks()

    step = Step(model)
    return daft.from_arrow(table).select(step(*map(daft.col, table.column_names)).alias("row")).select(
        *[daft.col("row").get(field.name).alias(field.name) for field in made]
    ).to_arrow()


def datafusion(model, table, schema):
    from datafusion import SessionContext, udf

    made = pyarrow.struct([field for field in model(table.slice(0, 0)).schema])

    def step(*columns):
        batch = pyarrow.RecordBatch.from_arrays(list(columns), names=table.column_names)
        return model(batch).to_struct_array()

    context = SessionContext()
    context.register_record_batches("rows", [table.to_batches()])
    context.register_udf(udf(step, list(table.schema.types), made, "immutable", "pteron"))
    columns = ", ".join(table.column_names)
    parts = ", ".join(f"found['{field.name}'] AS {field.name}" for field in made)
    return context.sql(f"SELECT {parts} FROM (SELECT pteron({columns}) AS found FROM rows)").to_arrow_table()


ENGINES = {"ray": ray, "spark": spark, "daft": daft, "datafusion": datafusion}
